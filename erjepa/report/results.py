"""What an experiment left on disk: its cells, their checkpoints, and what is absent."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from math import isclose
from pathlib import Path
from typing import Any

EXPERIMENT = "experiment.json"
RESULTS = "results.jsonl"


class Unavailable(Exception):
    """A section cannot be made of these results; the message says why."""


@dataclass(frozen=True)
class Result:
    """A scored checkpoint, as its line of ``results.jsonl`` has it.

    ``budget`` is the compute that the checkpoint was asked for, in FLOPs, and None at the
    end of an epoch or of the run; ``accuracy`` lies between 0 and 1; ``split`` is what was
    scored, ``test`` or ``validation``.
    """

    cell: str
    dataset: str
    method: str
    seed: int
    checkpoint: str
    budget: float | None
    steps: int
    total_flops: float
    total_tokens: int
    epoch: float
    task: str
    accuracy: float
    primary: str
    readings: Mapping[str, float]
    examples: int
    predictions: str
    log: str
    train_seconds: float
    eval_seconds: float
    split: str = "test"


class Results:
    """The results of one experiment, finished or not.

    Args:
        output (Path): its output folder.
        config (Mapping[str, Any] | None): the experiment's config, as ``experiment.json``
            has it; None reads it from there.

    Raises:
        FileNotFoundError: if the folder has no ``experiment.json``.
        ValueError: naming file and line, if something there is not what it should be.
    """

    def __init__(self, output: Path, config: Mapping[str, Any] | None = None) -> None:
        self.output = output
        path = output / EXPERIMENT
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is absent: {output} is not the output of an experiment"
            )
        self.ran = json.loads(path.read_text())
        self.config = dict(self.ran["config"] if config is None else config)
        for key in ("name", "datasets", "methods", "seeds"):
            if key not in self.config:
                raise ValueError(f"{path}: the config has no key {key!r}")
        self.datasets: list[str] = list(self.config["datasets"])
        self.methods: list[str] = list(self.config["methods"])
        self.seeds: list[int] = list(self.config["seeds"])
        self.budgets: list[float] = sorted(self.config.get("budgets") or [])
        self.rows = _read_rows(output / RESULTS)

    def overrides(self, method: str) -> dict[str, Any]:
        """Config keys that a method sets, and those that all methods set."""
        return {
            **(self.config.get("overrides") or {}),
            **(self.config["methods"][method] or {}),
        }

    @property
    def token_matched(self) -> dict[str, str]:
        """Methods that stop at the tokens of another, and that other."""
        return {
            method: overrides["stop.tokens_of"]
            for method, overrides in self.config["methods"].items()
            if overrides and "stop.tokens_of" in overrides
        }

    def task(self, dataset: str) -> str | None:
        """The task of a dataset; None before any of it is scored."""
        return next((row.task for row in self.rows if row.dataset == dataset), None)

    def checkpoints(self, dataset: str, method: str, seed: int) -> list[Result]:
        """Scored checkpoints of a cell in order of steps."""
        return self._cells.get((dataset, method, seed), [])

    def final(self, dataset: str, method: str) -> dict[int, Result]:
        """Seed to the checkpoint that ends its run, of runs that have it.

        At matched compute that is the one at the last budget, otherwise the one at the
        end of the run's epochs or tokens.
        """
        found = {}
        for seed in self.seeds:
            ends = [
                row
                for row in self.checkpoints(dataset, method, seed)
                if self._ends_run(row)
            ]
            if ends:
                found[seed] = ends[-1]
        return found

    def at_budget(self, dataset: str, method: str, budget: float) -> dict[int, Result]:
        """Seed to the checkpoint at a budget, of runs that have it."""
        return {
            seed: row
            for seed in self.seeds
            for row in self.checkpoints(dataset, method, seed)
            if row.budget is not None and isclose(row.budget, budget)
        }

    def missing(self) -> dict[tuple[str, str], list[int]]:
        """Dataset and method to the seeds without a scored end of run."""
        gaps = {}
        for dataset in self.datasets:
            for method in self.methods:
                found = self.final(dataset, method)
                if absent := [seed for seed in self.seeds if seed not in found]:
                    gaps[dataset, method] = absent
        return gaps

    def predictions(self, result: Result) -> list[dict[str, Any]]:
        """Predictions of a checkpoint in order of ids.

        Raises:
            Unavailable: if they are absent or cannot be read.
        """
        path = self.output / result.predictions
        try:
            lines = path.read_text().splitlines()
            found = [json.loads(line) for line in lines if line.strip()]
            return sorted(found, key=lambda one: one["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unavailable(
                f"{path}: predictions cannot be read ({error!r})"
            ) from None

    @cached_property
    def _cells(self) -> dict[tuple[str, str, int], list[Result]]:
        cells: dict[tuple[str, str, int], list[Result]] = {}
        for row in sorted(self.rows, key=lambda row: row.steps):
            cells.setdefault((row.dataset, row.method, row.seed), []).append(row)
        return cells

    def _ends_run(self, row: Result) -> bool:
        if row.method in self.token_matched:
            # All checkpoints of a run are recorded at once; its end may be at a budget.
            return row is self.checkpoints(row.dataset, row.method, row.seed)[-1]
        if self.budgets and self.config.get("match", "flops") != "epochs":
            return row.budget is not None and isclose(row.budget, self.budgets[-1])
        return row.budget is None and row.epoch >= self._epochs(row)

    def _epochs(self, row: Result) -> float:
        """Epochs that the run of ``row`` is to have: as set, or the most of any run.

        A run that is stopped otherwise may end at any.
        """
        overrides = self.overrides(row.method)
        if any(key.startswith("stop.") for key in overrides):
            return 0.0
        most = max(one.epoch for one in self.rows if one.dataset == row.dataset)
        return float(overrides.get("epochs", most))


def _read_rows(path: Path) -> list[Result]:
    """Rows of the file; of a checkpoint that was scored twice the last counts."""
    rows: dict[tuple[str, str], Result] = {}
    if not path.is_file():
        return []
    text = path.read_text()
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _row(json.loads(line))
        except (ValueError, TypeError) as error:
            if number == len(lines) and not text.endswith("\n"):
                break  # being written
            raise ValueError(f"{path}:{number}: {error}") from None
        rows[row.cell, row.checkpoint] = row
    return list(rows.values())


def _row(values: Mapping[str, Any]) -> Result:
    known = fields(Result)
    missing = [f.name for f in known if f.name not in values and f.default is MISSING]
    if missing:
        raise ValueError(f"no field {', '.join(missing)}")
    return Result(**{f.name: values[f.name] for f in known if f.name in values})
