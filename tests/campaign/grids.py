"""Attacks on grids with a stand-in for training: kills, odd names, keys, folders and records."""

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

import erjepa.configs
from erjepa.commands.experiment import main
from erjepa.datasets import origin_labels
from erjepa.studies.grid import processes
from erjepa.studies.grid.cells import cells
from erjepa.studies.grid.config import load_experiment
from erjepa.studies.report.results import Results
from erjepa.utils.files import EXPERIMENT, RESULTS
from tests.campaign.attack import (
    REFUSED,
    UNHARMED,
    Attack,
    Lost,
    Try,
    called,
    refused,
    within,
)
from tests.campaign.files import harm
from tests.campaign.inputs import ODD, alter
from tests.harness.databases import snapshot
from tests.harness.grids import Grid, results, use_fake_tune, write_experiment

_SECONDS = 60


def kills(folder: Path) -> Try:
    """Send a grid SIGKILL, SIGTERM or SIGINT at any moment, several times; then let it finish."""
    write_experiment(folder)
    if Grid(folder).wait():
        raise RuntimeError("the unharmed grid failed")
    expected = sorted(map(str, results(folder)))

    def attempt(rng: random.Random, scratch: Path) -> str:
        write_experiment(scratch)
        for _ in range(rng.randint(1, 4)):
            grid = Grid(scratch, FAKE_STEP_SECONDS="0.01")
            deadline = time.monotonic() + rng.uniform(0, 3)
            while time.monotonic() < deadline and not grid.ended():
                time.sleep(0.01)
            if not grid.ended():
                grid.signal(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            grid.wait()
        last = Grid(scratch)
        if last.wait():
            raise Lost(f"does not go on: {last.printed()[-1000:]}")
        if sorted(map(str, results(scratch))) != expected:
            raise Lost("results.jsonl is not that of an unbroken grid")
        return UNHARMED

    return attempt


_EXPERIMENT = {
    "name": "fake",
    "seeds": [1, 2],
    "datasets": {"synth": "tiny_synth"},
    "methods": {"ER-JEPA": {}},
    "overrides": {"epochs": 2},
    "budgets": [25],
    "devices": [0, 1],
}
_PIECES = [*".. . / \\ ~ a A ab - _ ' : # * \" %s {} ${seeds} $HOME CON".split()]
_PIECES += ["er-jepa", "seed_1", "cells", "report", ".made_by_erjepa", "x" * 200]
_PIECES += [" ", "\n", "\0", "\u00e9", "e\u0301", "\ufb01", "fi", "\u0131", "\u202e"]


@contextlib.contextmanager
def _stand_in(folder: Path) -> Iterator[None]:
    """Make grids of this process run a stand-in for training."""
    told = {"FAKE_CALLS": str(folder / "calls.txt")}
    with mock.patch.object(processes, "tune"), mock.patch.dict(os.environ, told):
        use_fake_tune()
        yield


def _write(folder: Path, experiment: dict[str, Any]) -> Path:
    path = folder / "odd.yaml"
    path.write_text(yaml.safe_dump(experiment))
    return path


def _precious(folder: Path) -> Path:
    """Create a user's folder beside a grid's output, to which a name could lead."""
    (folder / "er-jepa" / "seed_1").mkdir(parents=True)
    (folder / "er-jepa" / "seed_1" / "thesis.txt").write_text("mine")
    return folder


def names(folder: Path) -> Try:
    """Names of datasets, methods and seeds that lead to other folders or to each other's."""

    def attempt(rng: random.Random, scratch: Path) -> str:
        precious, output = _precious(scratch / "precious"), scratch / "out"
        pieces = [*_PIECES, str(precious)]

        def name() -> str:
            return "".join(rng.choices(pieces, k=rng.randint(1, 3)))

        experiment = {**_EXPERIMENT, "output_dir": str(output)}
        key = rng.choice(["datasets", "methods", "seeds", "name"])
        if key == "name":
            experiment[key] = name()
        elif key == "seeds":
            experiment[key] = [rng.choice([1, name(), *ODD]) for _ in range(2)]
        else:
            value = "tiny_synth" if key == "datasets" else {}
            experiment[key] = {name(): value for _ in range(2)}
        path, before = _write(scratch, experiment), snapshot(precious)[0]
        with _stand_in(scratch), within(_SECONDS):
            outcome, _ = called(main, ["run", str(path)], key)
        beside = {"precious", "out", "odd.yaml", "calls.txt"}
        if snapshot(precious)[0] != before or not beside.issuperset(
            os.listdir(scratch)
        ):
            raise Lost(f"{experiment[key]}: it wrote elsewhere")
        if outcome == UNHARMED:
            grid = cells(load_experiment(str(path)))
            known = {cell.name for cell in grid}
            trained = sum(cell.same_as is None for cell in grid)
            found = [Path(row["predictions"]) for row in results(scratch)]
            folders = {(output / path).parent.resolve() for path in found}
            if (
                trained != len(folders)
                or {r["cell"] for r in results(scratch)} != known
            ):
                raise Lost(f"{experiment[key]}: cells share {folders}")
        labels = origin_labels([name() for _ in range(4)])
        if len(set(labels)) < 4 or not all(
            re.fullmatch(r"\w+", label) for label in labels
        ):
            raise Lost(f"datasets of a run are called {labels}")
        return outcome

    return attempt


def folders(folder: Path) -> Try:
    """Something of the user's is in the place of a folder of the grid."""

    def attempt(rng: random.Random, scratch: Path) -> str:
        precious = _precious(scratch / "precious")
        where = ["out", "cells", "synth", "er-jepa", "seed_1"]
        place = scratch.joinpath(*where[: rng.randint(2, 5)])
        place.parent.mkdir(parents=True)
        way = rng.choice(["link", "loop", "dangling", "file", "FIFO", "folder"])
        if way == "file":
            place.write_text("mine")
        elif way == "FIFO":
            os.mkfifo(place)
        elif way == "folder":
            shutil.copytree(precious, place)
        else:
            to = {"link": precious, "loop": place, "dangling": scratch / "nowhere"}
            place.symlink_to(to[way])
        listed = sorted(place.rglob("*")) if way == "folder" else []
        before = snapshot(precious)[0]
        experiment = {**_EXPERIMENT, "output_dir": str(scratch / "out")}
        path, printed = _write(scratch, experiment), io.StringIO()
        with _stand_in(scratch), within(_SECONDS), contextlib.redirect_stdout(printed):
            with contextlib.redirect_stderr(printed):
                try:
                    code = main(["run", str(path)])
                except SystemExit as end:
                    code = end.code
        if snapshot(precious)[0] != before or (scratch / "nowhere").exists():
            raise Lost(f"{way} at {place}: it wrote through the link")
        if any(not path.exists() for path in listed):
            raise Lost(f"{way} at {place}: what was in it is gone")
        if not code:
            return UNHARMED
        if str(place) not in printed.getvalue():
            raise Lost(f"{way} at {place}: {printed.getvalue()}")
        return REFUSED

    return attempt


def keys(folder: Path) -> Try:
    """Keys of packaged experiments with odd values, missing, or misspelled."""
    known = erjepa.configs.config_names("experiments")
    whole = cache(lambda name: json.dumps(asdict(load_experiment(name))))

    def attempt(rng: random.Random, scratch: Path) -> str:
        experiment = json.loads(whole(rng.choice(known)))
        touched = [alter(rng, experiment) for _ in range(rng.randint(1, 2))]
        try:
            path = _write(scratch, experiment)
        except (yaml.YAMLError, UnicodeEncodeError):
            return REFUSED  # no YAML has such a value
        # The file, in which a key that is missing is, or the key.
        outcome, _ = called(main, ["show", str(path)], path, *touched)
        return outcome

    return attempt


def records(folder: Path) -> Try:
    """Damage the record of a finished grid, its results or those of a cell."""
    output = folder / "out"
    path = _write(folder, {**_EXPERIMENT, "output_dir": str(output)})
    with _stand_in(folder):
        called(main, ["run", str(path)])
    _, expected = called(main, ["status", str(output)])
    own = [path.relative_to(output) for path in output.glob(f"cells/**/{RESULTS}")]

    def attempt(rng: random.Random, scratch: Path) -> str:
        copy = shutil.copytree(output, scratch / "out")
        path = copy / rng.choice([EXPERIMENT, RESULTS, RESULTS, min(own)])
        if rng.random() < 0.3:
            done = harm(rng, path, None)
        elif path.name == RESULTS:
            lines = path.read_text().splitlines()
            at = rng.randrange(len(lines))
            row = json.loads(lines[at])
            done = f"line {at + 1}: {alter(rng, row)}"
            lines[at] = json.dumps(row)
            path.write_text("\n".join(lines) + "\n")
        else:
            record = json.loads(path.read_text())
            done = alter(rng, record)
            path.write_text(json.dumps(record))
        try:
            outcome, printed = called(main, ["status", str(copy)], path, path.parent)
            if outcome == UNHARMED and path.name != EXPERIMENT:
                if len(printed.splitlines()) != len(expected.splitlines()):
                    raise Lost(f"it says {printed}")
            try:
                Results(copy)
            except Exception as error:  # noqa: BLE001
                return refused(error, path, path.parent)
        except Exception as error:
            raise Lost(f"{path.name}: {done}: {error}") from error
        return outcome

    return attempt


ATTACKS = [
    Attack("kills of grids", 30, 2, kills),
    Attack("odd names in grids", 100, 1, names),
    Attack("folders in a grid's way", 100, 1, folders),
    Attack("odd keys of grids", 100, 1, keys),
    Attack("damaged records of grids", 300, 1, records),
]
