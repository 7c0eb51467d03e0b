"""What an experiment left on disk: a frame of scored checkpoints, and of predictions."""

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from erjepa.studies.experiment import read_record
from erjepa.studies.results import Result, read_results
from erjepa.utils.escape import printable
from erjepa.utils.jsonl import read_jsonl

# What captions say of the spread over seeds.
MEAN = ", mean ± one sample standard deviation"
DOTS = ": means, one sample standard deviation, and single seeds as dots"
BANDS = ": means, bands of one sample standard deviation"
ROLES = ("SFT", "LLM-JEPA", "ER-JEPA")
# The paper's JEPA loss, the default first; it has no further terms. Of any other it claims
# nothing.
_PAPERS = {
    "views": ("shared", "standalone"),
    "predictor_position": ("behind",),
    "loss.distance": ("cosine",),
    "loss.direction": ("source_to_target",),
    "loss.jepa_every": (1,),
}


class Unavailable(Exception):
    """A section cannot be made of these results; the message says why."""


class Results:
    """The results of one experiment, finished or not.

    ``runs`` has a row for each scored checkpoint, in order of datasets, methods and seeds as
    the config has them, then of steps. Its columns are the fields of ``Result``, with ``accuracy`` in percent, and

        point   where checkpoints of different runs compare: the budget, or without budgets
                the epoch; NaN for others
        ends    whether the checkpoint may end its run: at the last budget or, if runs are
                not matched in compute, after its epochs or tokens; of a sequence of
                datasets only after the last of them

    Where several kinds of weights of each checkpoint were scored (``score_weights``), they are
    those of the first kind; :meth:`of_weights` has those of another.

    Args:
        output: the experiment's output folder.

    Raises:
        FileNotFoundError: if the folder has no ``experiment.json``.
        ValueError: naming file and line, if something there is not what it should be.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.ran = read_record(output)
        self.config = self.ran.config
        self.datasets: list[str] = list(self.config.datasets)
        self.methods: list[str] = list(self.config.methods)
        self.seeds: list[int] = list(self.config.seeds)
        self.budgets: list[float] = list(self.config.budgets or [])
        kinds: list[str] = list(self.config.score_weights)
        scored = {result.weights for result in read_results(output)}
        # Kinds of weights that there are results of.
        self.weights: list[str] = [w for w in kinds if w in scored] or kinds[:1]
        self.runs = self._runs(self.weights[0], self.datasets)

    def of_weights(self, weights: str) -> "Results":
        """The same results of one kind of weights, ``last`` or ``ema``."""
        if weights not in self.weights:
            raise Unavailable(f"no {weights} weights are scored")
        other = copy(self)
        other.weights = [weights]
        other.runs = self._runs(weights, self.datasets)
        return other

    def own(self, method: str) -> dict[str, Any]:
        """Config keys that a method sets."""
        return dict(self.config.methods[method])

    def overrides(self, method: str) -> dict[str, Any]:
        """Config keys that a method sets, and those that all methods set."""
        return {**self.config.overrides, **self.own(method)}

    def task(self, dataset: str) -> str | None:
        """The task of a dataset; None before any of it is scored."""
        return next(iter(self.runs.task[self.runs.dataset == dataset]), None)

    def trained_on(self, datasets: str) -> str | None:
        """The first method with ``trains_on`` so, if there is one."""
        named = (m for m in self.methods if self.own(m).get("trains_on") == datasets)
        return next(named, None)

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

        Told by what the method sets; None: its JEPA loss is not the paper's, it replays
        without one, or no stored pairs, or it trains on other datasets than its own.
        """
        set_to = self.overrides(method)
        replays = set_to.get("replay.weight") != 0
        if "trains_on" in set_to:
            return None  # a control of a sequence of datasets
        if replays and set_to.get("replay.selection") == "current_batch":
            return None  # a control without history
        if set_to.get("loss.jepa_weight") == 0:
            return None if replays else "SFT"
        if any(set_to.get(key, ok[0]) not in ok for key, ok in _PAPERS.items()):
            return None
        weights = {key for key in set_to if re.fullmatch(r"loss\.\w+_weight", key)}
        if any(set_to[key] for key in weights - {"loss.lm_weight", "loss.jepa_weight"}):
            return None
        return "ER-JEPA" if replays else "LLM-JEPA"

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

    def of(self, dataset: str | None, methods: Sequence[str]) -> pd.DataFrame:
        """Scored checkpoints of a dataset, None: of all, in order of ``methods``."""
        datasets = self.datasets if dataset is None else [dataset]
        return select(self.runs, dataset=datasets, method=methods)

    def final(self, dataset: str | None, methods: Sequence[str]) -> pd.DataFrame:
        """The ends of finished runs of a dataset or all; Unavailable if there is none."""
        rows = self.of(dataset, methods)
        rows = rows[rows.ends].drop_duplicates(["cell", "dataset"], keep="last")
        if rows.empty:
            where = "" if dataset is None else f" on {dataset}"
            raise Unavailable(f"no run of these methods{where} has reached its end")
        return rows

    def over_points(self, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
        """Accuracy of runs that are scored at every point: a row a run, a column a point."""
        points = self.runs[self.runs.dataset == dataset].point.dropna().unique()
        rows = self.of(dataset, methods).dropna(subset="point")
        wide = pivot(rows, ["method", "seed"], "point", "accuracy")
        wide = wide.reindex(columns=self.budgets or sorted(points)).dropna()
        if wide.shape[1] < 2 or wide.empty:
            raise Unavailable(
                f"no run on {dataset} is scored at all of two checkpoints"
            )
        return wide

    def note(self, rows: pd.DataFrame, methods: Sequence[str]) -> str:
        """A sentence on how many seeds stand behind each method's value."""
        planned, names, expected = len(self.seeds), rows.method, list(methods)
        if "dataset" in rows and rows.dataset.nunique() > 1:
            names = rows.method + " on " + rows.dataset
            expected = [f"{m} on {d}" for d in rows.dataset.unique() for m in methods]
        counts = rows.seed.groupby(names).nunique().reindex(expected, fill_value=0)
        if (counts == planned).all():
            return "One seed." if planned == 1 else f"Over {planned} seeds."
        if counts.nunique() == 1:
            return f"Over {counts.iloc[0]} of {planned} seeds."
        short = [f"{x} {count}" for x, count in counts.items() if count < planned]
        return f"Over {planned} seeds; fewer are finished of {', '.join(short)}."

    def if_seeds(self, text: str) -> str:
        """What a caption says of the spread over seeds; nothing of a single one."""
        return text if len(self.seeds) > 1 else ""

    def trained(self, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
        """The ends of finished runs that were trained on a dataset: of a sequence those of its
        own stage. Unavailable if there is none.
        """
        if not self.config.continual:
            return self.final(dataset, methods)
        rows = self.of(dataset, methods)
        rows = rows[rows.stage == dataset].drop_duplicates("cell", keep="last")
        if rows.empty:
            raise Unavailable(
                f"no run of these methods on {dataset} has reached its end"
            )
        return rows

    def missing(self) -> dict[tuple[str, str], dict[int, int]]:
        """Dataset and method to seeds without a scored end, and their scored checkpoints."""
        runs = self.runs.groupby(["dataset", "method", "seed"]).ends
        ended, scored = runs.any().to_dict(), runs.size().to_dict()
        gaps: dict[tuple[str, str], dict[int, int]] = {}
        for cell in product(self.datasets, self.methods, self.seeds):
            if not ended.get(cell):
                gaps.setdefault(cell[:2], {})[cell[2]] = scored.get(cell, 0)
        return gaps

    def predictions(self, runs: pd.DataFrame) -> pd.DataFrame:
        """What some rows of ``runs`` answered to the same examples, in order of their ids.

        Columns ``method seed point id prompt target output extracted correct`` and, where the
        evaluation computed it, ``cosine``. Unavailable if they cannot be read, or if they
        are of different examples.
        """
        frames: list[pd.DataFrame] = []
        for run in runs.itertuples():
            path = self.output / run.predictions
            try:
                rows = [
                    {k: printable(v) for k, v in row.items()}
                    for _, row in read_jsonl(path)
                ]
                found = pd.DataFrame(rows)
                found = found.sort_values("id").assign(
                    correct=found[run.primary].eq(True)
                )
                found[["prompt", "target", "output"]]  # there, or it is a KeyError
            except (OSError, ValueError, KeyError) as error:
                raise Unavailable(
                    f"{path}: predictions cannot be read ({error!r})"
                ) from None
            keys = {"method": run.method, "seed": run.seed, "point": run.point}
            extracted = found.get("extracted", found["output"]).map(str)
            frames.append(found.assign(**keys, extracted=extracted))
            if found["target"].tolist() != frames[0]["target"].tolist():
                raise Unavailable("the checkpoints were scored on different examples")
        return pd.concat(frames, ignore_index=True)

    def final_predictions(self, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
        """Predictions at the ends of runs, of the seeds that all of the methods have.

        In order of seeds, then methods; Unavailable if they share no seed.
        """
        ends = self.final(dataset, methods)
        shared = ends[ends.groupby("seed").method.transform("size") == len(methods)]
        if shared.empty:
            raise Unavailable(f"no seed is finished of all of {', '.join(methods)}")
        return self.predictions(select(shared, seed=self.seeds))

    def also_scored(self, methods: Sequence[str]) -> pd.DataFrame:
        """As :meth:`final`, on the datasets of ``also_scored``; without any, of no rows."""
        rows = self._runs(self.weights[0], list(self.config.also_scored))
        return select(rows[rows.ends], method=methods)

    def _runs(self, weights: str, datasets: Sequence[str]) -> pd.DataFrame:
        columns = [field.name for field in fields(Result)]
        rows = pd.DataFrame(read_results(self.output), columns=columns)
        rows = rows[rows.weights == weights]
        # Of a checkpoint that was scored twice the last counts.
        rows = rows.drop_duplicates(["cell", "dataset", "checkpoint"], keep="last")
        rows = rows.astype({"accuracy": float, "budget": float}).sort_values(
            "steps", kind="stable"
        )
        known = {"dataset": datasets, "method": self.methods}
        rows = select(rows, **known, seed=self.seeds).reset_index(drop=True)
        rows["accuracy"] *= 100
        rows["point"] = rows.epoch.where(rows.budget.isna()).astype(float)
        if self.budgets:
            rows["point"] = rows.budget.where(rows.budget.isin(self.budgets))
        is_last = ~rows.duplicated(["cell", "dataset"], keep="last")
        most = rows.groupby("dataset").epoch.transform("max")
        ends = map(self._ends, rows.itertuples(), is_last, most)
        return rows.assign(ends=pd.Series(list(ends), rows.index, dtype=bool))

    def _ends(self, row: Any, is_last: bool, most: float) -> bool:
        if self.config.continual and row.stage != self.datasets[-1]:
            return False  # the sequence continues
        if {"stop.tokens_of", "trains_on"} & self.own(row.method).keys():
            # All checkpoints of a run are recorded at once; its end may be at a budget.
            return is_last
        if self.budgets and self.config.match == "flops":
            return row.point == self.budgets[-1]
        # Epochs that the run is to have: as set, or the most of any; stopped, it may end at any.
        overrides = self.overrides(row.method)
        stops = any(key.startswith("stop.") for key in overrides)
        epochs = 0.0 if stops else float(overrides.get("epochs", most))
        return (pd.isna(row.budget) or is_last) and row.epoch >= epochs


def pivot(
    rows: pd.DataFrame, index: Sequence[str], columns: str, values: str
) -> pd.DataFrame:
    """``DataFrame.pivot`` with rows and columns in order of appearance."""
    wide = rows.pivot(index=list(index), columns=columns, values=values)
    seen = pd.MultiIndex.from_frame(rows[list(index)].drop_duplicates())
    return wide.reindex(index=seen, columns=rows[columns].unique())


def select(rows: pd.DataFrame, **names: Sequence[Any]) -> pd.DataFrame:
    """Rows whose columns hold one of some names, in order of these, the first column first."""
    for column, allowed in reversed(names.items()):
        rows = rows[rows[column].isin(allowed)]
        rows = rows.sort_values(
            column, key=lambda x: x.map(allowed.index), kind="stable"
        )
    return rows
