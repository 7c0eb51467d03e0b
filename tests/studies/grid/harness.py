"""Runs grids with a stand-in for ``tune``, in this process or in one that can be killed."""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

from erjepa.commands.experiment import main
from erjepa.studies.grid import processes

FAKE_TUNE = Path(__file__).parent / "fake_tune.py"

EXPERIMENT = """
name: fake
seeds: [1, 2]
datasets: {synth: tiny_synth}
methods:
  Matched: {replay.weight: 0, stop.tokens_of: ER-JEPA}
  LLM-JEPA: {replay.weight: 0}
  ER-JEPA: {}
overrides: {epochs: 12}
budgets: [45, 80]
match: flops
"""


def use_fake_tune():
    """Make grids of this process run the stand-in."""
    processes.tune = lambda: [sys.executable, "-S", str(FAKE_TUNE)]


def write_experiment(folder: Path, text: str = EXPERIMENT) -> Path:
    path = folder / "fake.yaml"
    path.write_text(f"{text}\noutput_dir: {folder / 'out'}\n")
    return path


class Grid:
    """``erjepa experiment run`` in a forked process, with the stand-in for tune."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self._log = folder / "printed.txt"
        self._process = multiprocessing.get_context("fork").Process(
            target=_main, args=(folder, arguments, environment, self._log)
        )
        self._process.start()

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def ended(self) -> bool:
        return not self._process.is_alive()

    def wait(self) -> int:
        """Its exit code."""
        self._process.join(timeout=60)
        assert self._process.exitcode is not None, self.printed()
        return self._process.exitcode

    def printed(self) -> str:
        return self._log.read_text()


def _main(folder, arguments, environment, log) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(FAKE_CALLS=str(folder / "calls.txt"), **environment)
    use_fake_tune()
    with log.open("a") as sys.stdout, log.open("a") as sys.stderr:
        sys.exit(main(["run", str(folder / "fake.yaml"), *arguments]))


def calls(folder: Path) -> list[str]:
    path = folder / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def results(folder: Path) -> list[dict]:
    lines = (folder / "out" / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
