"""Attacks on training runs: kills, signals, a second run in the same folder, and full disks."""

import contextlib
import os
import random
import signal
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

from erjepa.studies.grid import processes
from tests.campaign.attack import REFUSED, UNHARMED, Attack, Lost, Try
from tests.harness.data import write_records
from tests.harness.models import write_base
from tests.harness.ranks import start_ranks
from tests.harness.runs import read_untimed, small_config, train, train_here

_SETTINGS = {
    "replay__selection": "uniform",
    "replay__budget": 6,
    "replay__capacity": 30,
    "save_every_n_steps": 2,
    "model__lora_dropout": 0.1,
}


class Runs:
    """Short runs on one rank or two, and their undisturbed results."""

    def __init__(self, folder: Path) -> None:
        self._base = write_base(folder / "base")
        self._data = write_records(folder / "train.jsonl", 44)
        self._folder = folder

    @cache  # noqa: B019 - it lives as long as an attack
    def unharmed(self, ranks: int):
        """Return the result of an undisturbed run, and its seconds."""
        start, output = time.monotonic(), self._folder / f"reference_{ranks}"
        train(self.config(output, ranks), ranks)
        return self.left(output), time.monotonic() - start

    def config(self, output: Path, ranks: int, **overrides):
        """A run of 22 steps in two epochs."""
        settings = {**_SETTINGS, "batch_size": 4 // ranks, **overrides}
        has_checkpoint = bool(list(output.glob("epoch_*")))
        settings["resume_from_checkpoint"] = has_checkpoint
        return small_config(self._base, self._data, output, **settings)

    def left(self, output: Path):
        """Return the results of a run that do not depend on the clock."""
        metrics = read_untimed(output)
        last = sorted(output.glob("epoch_1/adapter_model.pt"))
        if not last:
            raise Lost(f"no checkpoint at the end: {sorted(os.listdir(output))}")
        return metrics, torch.load(last[0], weights_only=True)

    def check(self, output: Path, ranks: int) -> None:
        metrics, weights = self.left(output)
        (expected_metrics, expected_weights), _ = self.unharmed(ranks)
        if metrics != expected_metrics:
            raise Lost("the log is not that of an unharmed run")
        if not same(weights, expected_weights):
            raise Lost("the weights are not those of an unharmed run")


class Ranks:
    """Forked ranks of one run, with the messages of those that fail."""

    def __init__(self, cfg, ranks: int) -> None:
        self.processes, self._results = start_ranks(
            lambda: train_here(cfg, None), ranks
        )

    def wait(self, seconds: float) -> bool:
        """Return whether all ended in time."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return not any(process.is_alive() for process in self.processes)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def _has_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:  # it comes and goes
        return False


def _finish(runs: Runs, output: Path, ranks: int) -> None:
    train(runs.config(output, ranks), ranks)
    runs.check(output, ranks)


def kills(folder: Path) -> Try:
    """SIGKILL of a rank and then of all, at any moment or within a save; then the run resumes."""
    runs = Runs(folder)

    def attempt(rng: random.Random, scratch: Path) -> str:
        output, ranks = scratch / "run", rng.choice((1, 1, 2))
        _, seconds = runs.unharmed(ranks)
        started = Ranks(runs.config(output, ranks), ranks)
        if rng.random() < 0.4:  # within a save
            nth, seen, partial = rng.randint(1, 6), 0, output / ".partial"
            while seen < nth and any(p.is_alive() for p in started.processes):
                if _has_files(partial):
                    seen += 1
                    time.sleep(rng.uniform(0, 0.02))
                else:
                    time.sleep(0.001)
        else:
            started.wait(rng.uniform(0, 1.1) * seconds)
        rng.choice(started.processes).kill()
        started.wait(0.2)
        started.kill()
        _finish(runs, output, ranks)
        return UNHARMED

    return attempt


def doubles(folder: Path) -> Try:
    """A second run is started in the folder of one that is running."""
    runs = Runs(folder)

    def attempt(rng: random.Random, scratch: Path) -> str:
        output, (_, seconds) = scratch / "run", runs.unharmed(1)
        first = Ranks(runs.config(output, 1), 1)
        time.sleep(rng.uniform(0, 0.8) * seconds)
        said = []
        try:
            train(runs.config(output, 1), 1)
        except Exception as error:  # noqa: BLE001 - what it is, is looked at
            said.append(str(error))
        first.wait(120)
        if said and str(output) not in said[0]:
            raise Lost(f"refused without the folder: {said[0]}")
        if not (output / "epoch_1").is_dir():  # the first was the one refused
            _finish(runs, output, 1)
        runs.check(output, 1)
        return REFUSED if said else UNHARMED

    return attempt


def full_disks(folder: Path) -> Try:
    """The disk fills up during a run; once there is space, the run resumes."""
    runs = Runs(folder)

    def attempt(rng: random.Random, scratch: Path) -> str:
        disk = scratch / "disk"
        disk.mkdir()
        size = rng.choice([rng.randint(64, 4000), rng.randint(4000, 40_000)])
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)]
        subprocess.run(mount, check=True)
        try:
            said = None
            try:
                train(runs.config(disk / "run", 1), 1)
            except Exception as error:  # noqa: BLE001
                said = str(error)
            if said is not None and str(disk) not in said:
                raise Lost(f"size {size}k, refused without the folder: {said}")
            subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
            if said is not None:
                train(runs.config(disk / "run", 1), 1)
            runs.check(disk / "run", 1)
            return UNHARMED if said is None else REFUSED
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)

    return attempt


def launchers(folder: Path) -> Try:
    """A signal to ``tune run``, its group or a rank; no process remains, and the run resumes."""
    common = "tiny_synth dataset.size=240 batch_size=8 save_every_n_steps=2".split()

    def command(output: Path, *more: str) -> list[str]:
        start = ["run", "--nproc_per_node", "2", "erjepa_recipe", "--config"]
        return [*processes.tune(), *start, *common, f"output_dir={output}", *more]

    def quiet(words: list[str], **kwargs) -> subprocess.Popen:
        log = open(folder / "printed.txt", "a")  # noqa: SIM115
        return subprocess.Popen(words, stdout=log, stderr=log, **kwargs)

    def weights(output: Path):
        (path,) = output.glob("epoch_0/adapter_model.pt")
        return torch.load(path, weights_only=True)

    reference = folder / "reference"
    start = time.monotonic()
    if quiet(command(reference)).wait():
        raise RuntimeError((folder / "printed.txt").read_text()[-2000:])
    seconds, expected = time.monotonic() - start, weights(reference)

    def attempt(rng: random.Random, scratch: Path) -> str:
        output = scratch / "run"
        launcher = quiet(command(output), start_new_session=True)
        time.sleep(rng.uniform(0.2, 1.0) * seconds)
        number = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        of_ranks = _processes(output) - {launcher.pid}
        to = rng.choice(["launcher", "group", "rank"])
        with contextlib.suppress(ProcessLookupError):
            if to == "rank" and of_ranks:
                os.kill(rng.choice(sorted(of_ranks)), number)
            elif to == "group":
                os.killpg(launcher.pid, number)
            else:
                os.kill(launcher.pid, number)
        deadline = time.monotonic() + 60
        while launcher.poll() is None or _processes(output):
            if time.monotonic() > deadline:
                raise Lost(
                    f"{number.name} to {to}: processes stay {_processes(output)}"
                )
            time.sleep(0.1)
        if not (output / "epoch_0").is_dir():
            has = any(output.glob("epoch_*")) if output.is_dir() else False
            again = quiet(command(output, f"resume_from_checkpoint={has}"))
            if again.wait():
                said = (folder / "printed.txt").read_text()[-2000:]
                raise Lost(f"{number.name} to {to}: does not go on: {said}")
        found = weights(output)
        if not same(found, expected):
            raise Lost(f"{number.name} to {to}: other weights")
        return UNHARMED

    return attempt


def _processes(output: Path) -> set[int]:
    """Return the living processes that were started with this ``output_dir``."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"output_dir={output}".encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found


ATTACKS = [
    Attack("kills of ranks", 100, 6, kills),
    Attack("signals to launchers", 12, 6, launchers),
    Attack("two runs in a folder", 10, 1, doubles),
]
if os.name == "posix" and hasattr(os, "geteuid") and os.geteuid() == 0:
    ATTACKS.append(Attack("full disks", 20, 1.5, full_disks))
