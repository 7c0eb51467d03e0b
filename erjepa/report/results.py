"""What an experiment left on disk, as a frame of scored checkpoints."""

import json
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any

import pandas as pd

from erjepa.io import EXPERIMENT, RESULTS

ROLES = ("SFT", "LLM-JEPA", "ER-JEPA")
_FIELDS = (
    "cell dataset method seed checkpoint budget steps total_flops total_tokens epoch task "
    "accuracy primary readings examples predictions log train_seconds eval_seconds"
).split()


class Unavailable(Exception):
    """A section cannot be made of these results; the message says why."""


class Results:
    """The results of one experiment, finished or not.

    ``runs`` has a row for each scored checkpoint, in order of datasets, methods and seeds as
    the config has them, then of steps. Its columns are the fields of ``results.jsonl``, with
    ``accuracy`` in percent, and

        split   what was scored, ``test`` or ``validation``
        point   where checkpoints of different runs compare: the budget, or without budgets
                the epoch; NaN for others
        ends    whether the checkpoint may end its run: at the last budget or, if runs are
                not matched in compute, after its epochs or tokens

    Args:
        output (Path): the experiment's output folder.
        config (Mapping[str, Any] | None): its config; None: as ``experiment.json`` has it.

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
        self.runs = self._in_order(_read(output / RESULTS))

    def own(self, method: str) -> dict[str, Any]:
        """Config keys that a method sets."""
        return dict(self.config["methods"][method] or {})

    def overrides(self, method: str) -> dict[str, Any]:
        """Config keys that a method sets, and those that all methods set."""
        return {**(self.config.get("overrides") or {}), **self.own(method)}

    def task(self, dataset: str) -> str | None:
        """The task of a dataset; None before any of it is scored."""
        return next(iter(self.runs.task[self.runs.dataset == dataset]), None)

    def scored_datasets(self) -> list[str]:
        """Datasets that something is scored of; Unavailable if there is none."""
        if self.runs.empty:
            raise Unavailable("nothing is scored yet")
        return list(self.runs.dataset.unique())

    def named(self, methods: Sequence[str]) -> list[str]:
        """``methods``; ValueError if one is not among the experiment's."""
        for method in methods:
            if method not in self.methods:
                raise ValueError(
                    f"report: method {method!r} is none of {', '.join(self.methods)}"
                )
        return list(methods)

    def role(self, method: str) -> str | None:
        """``SFT`` (neither JEPA loss nor replay), ``LLM-JEPA`` (no replay) or ``ER-JEPA``.

        Told by what the method sets; None: it replays, though not stored pairs.
        """
        set_to = self.overrides(method)
        if set_to.get("replay.weight") == 0:
            return "SFT" if set_to.get("loss.jepa_weight") == 0 else "LLM-JEPA"
        is_control = set_to.get("replay.selection") == "current_batch"
        return None if is_control else "ER-JEPA"

    def first(self, role: str, method: str | None = None) -> str:
        """``method`` if it is given, else the first of a role; Unavailable if none has it."""
        if method is not None:
            return self.named([method])[0]
        for name in self.methods:
            if self.role(name) == role:
                return name
        raise Unavailable(f"no method of the experiment is {role}")

    def main_methods(self) -> list[str]:
        """The first method of each role, or all if they play fewer than two."""
        roles = {self.role(name) for name in self.methods}
        found = [self.first(role) for role in ROLES if role in roles]
        return found if len(found) > 1 else self.methods

    def of(self, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
        """Scored checkpoints of a dataset, in order of ``methods``."""
        rows = self.runs[self.runs.dataset == dataset]
        return pd.concat([rows[rows.method == method] for method in methods])

    def final(self, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
        """The ends of finished runs of a dataset; Unavailable if there is none."""
        rows = self.of(dataset, methods)
        rows = rows[rows.ends].groupby(["method", "seed"], sort=False).tail(1)
        if rows.empty:
            raise Unavailable(
                f"no run of these methods on {dataset} has reached its end"
            )
        return rows

    def over_points(self, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
        """Accuracy of runs that are scored at every point: a row a run, a column a point."""
        rows = self.of(dataset, methods).dropna(subset="point")
        points = self.budgets or sorted(
            self.runs.point[self.runs.dataset == dataset].dropna().unique()
        )
        keys = ["method", "seed"]
        index = pd.MultiIndex.from_frame(rows[keys].drop_duplicates())
        wide = rows.pivot(index=keys, columns="point", values="accuracy")
        wide = wide.reindex(index=index, columns=points).dropna()
        if len(points) < 2 or wide.empty:
            raise Unavailable(
                f"no run on {dataset} is scored at all of two checkpoints"
            )
        return wide

    def note(self, rows: pd.DataFrame, methods: Sequence[str]) -> str:
        """A sentence on how many seeds stand behind each method's value."""
        planned, seeds = len(self.seeds), rows.groupby("method").seed.nunique()
        counts = {method: seeds.get(method, 0) for method in methods}
        short = [f"{name} {count}" for name, count in counts.items() if count < planned]
        if not short:
            return "One seed." if planned == 1 else f"Over {planned} seeds."
        return f"Over {planned} seeds; fewer are finished of {', '.join(short)}."

    def missing(self) -> dict[tuple[str, str], dict[int, int]]:
        """Dataset and method to seeds without a scored end, and their scored checkpoints."""
        cells = self.runs.groupby(["dataset", "method", "seed"]).ends.agg(
            ["any", "size"]
        )
        gaps: dict[tuple[str, str], dict[int, int]] = {}
        for cell in pd.MultiIndex.from_product(
            [self.datasets, self.methods, self.seeds]
        ):
            ended, count = cells.loc[cell] if cell in cells.index else (False, 0)
            if not ended:
                gaps.setdefault(cell[:2], {})[cell[2]] = int(count)
        return gaps

    def _in_order(self, rows: pd.DataFrame) -> pd.DataFrame:
        places = {
            "dataset": {name: i for i, name in enumerate(self.datasets)},
            "method": {name: i for i, name in enumerate(self.methods)},
            "seed": {seed: i for i, seed in enumerate(self.seeds)},
        }
        for column, place in places.items():
            rows = rows[rows[column].isin(list(place))]
        rows = rows.sort_values(
            [*places, "steps"],
            key=lambda values: values.map(places.get(values.name, lambda step: step)),
            ignore_index=True,
        )
        rows["accuracy"] = 100 * rows.accuracy.astype(float)
        rows["point"] = [self._point(row) for row in rows.itertuples()]
        last = ~rows.duplicated(["dataset", "method", "seed"], keep="last")
        most = rows.groupby("dataset").epoch.max()
        rows["ends"] = [
            self._ends(row, is_last, most[row.dataset])
            for row, is_last in zip(rows.itertuples(), last, strict=True)
        ]
        return rows.astype({"point": float, "ends": bool})

    def _point(self, row: Any) -> float | None:
        if not self.budgets:
            return row.epoch if pd.isna(row.budget) else None
        return next((b for b in self.budgets if isclose(row.budget or 0, b)), None)

    def _ends(self, row: Any, is_last: bool, most: float) -> bool:
        if "stop.tokens_of" in self.own(row.method):
            # All checkpoints of a run are recorded at once; its end may be at a budget.
            return is_last
        if self.budgets and self.config.get("match", "flops") != "epochs":
            return self._point(row) == self.budgets[-1]
        # Epochs that the run is to have: as set, or the most of any; stopped, it may end at any.
        overrides = self.overrides(row.method)
        stops = any(key.startswith("stop.") for key in overrides)
        epochs = 0.0 if stops else float(overrides.get("epochs", most))
        return pd.isna(row.budget) and row.epoch >= epochs


def _read(path: Path) -> pd.DataFrame:
    """Rows of the file; of a checkpoint that was scored twice the last counts."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    text = path.read_text() if path.is_file() else ""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = {"split": "test", **json.loads(line)}
            if missing := [name for name in _FIELDS if name not in row]:
                raise ValueError(f"no field {', '.join(missing)}")
        except (ValueError, TypeError) as error:
            if number == len(lines) and not text.endswith("\n"):
                break  # being written
            raise ValueError(f"{path}:{number}: {error}") from None
        rows[row["cell"], row["checkpoint"]] = row
    return pd.DataFrame(list(rows.values()), columns=[*_FIELDS, "split"])
