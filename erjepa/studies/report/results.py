"""The results of an experiment as data frames of scored checkpoints and of predictions."""

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
from erjepa.utils.checked import leaves
from erjepa.utils.escape import counted, printable
from erjepa.utils.jsonl import read_jsonl

# Descriptions of the spread over seeds, for captions.
MEAN = ", mean ± sample standard deviation"
DOTS = ": means, sample standard deviations, and single seeds as dots"
BANDS = ": means, with bands of one sample standard deviation"
ROLES = ("SFT", "LLM-JEPA", "ER-JEPA")
# Settings of the paper's JEPA loss, each with its default first. The paper makes no claims on
# any other loss, nor on one with further terms.
_PAPERS = {
    "views": ("shared", "standalone"),
    "predictor_position": ("behind",),
    "loss.distance": ("cosine",),
    "loss.direction": ("source_to_target",),
    "loss.jepa_every": (1,),
}


class Unavailable(Exception):
    """Raised if the results are insufficient for a section; the message says why."""


class Results:
    """The results of one experiment, finished or not.

    ``runs`` has a row for each scored checkpoint, sorted by dataset, method and seed, in the order
    of the config, then by steps. Its columns are the fields of ``Result``, with ``accuracy`` in
    percent, and

        point   position at which checkpoints of different runs are compared: the budget, or
                without budgets the epoch; NaN for checkpoints elsewhere
        ends    whether the checkpoint is the last of its run; in a sequence of datasets, of the
                run on the last one

    The grid records the results of a run together, once all its checkpoints are scored.

    If several kinds of weights were scored (``score_weights``), ``runs`` has those of the first
    kind; :meth:`of_weights` selects another. Methods raise ``Unavailable`` if the results do not
    suffice.

    Raises:
        FileNotFoundError: if the folder has no ``experiment.json``.
        ValueError: naming file and line, if a file is damaged.
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
        columns = [field.name for field in fields(Result)]
        lines = [vars(result) for result in read_results(output)]
        self._scored = pd.DataFrame(lines, columns=columns)
        # Kinds of weights that have results.
        scored = set(self._scored.weights)
        self.weights: list[str] = [w for w in kinds if w in scored] or kinds[:1]
        self.runs = self._runs(self.weights[0], self.datasets)

    def of_weights(self, weights: str) -> "Results":
        """Return the results of one kind of weights, ``last`` or ``ema``."""
        if weights not in self.weights:
            raise Unavailable(f"no {weights} weights are scored")
        other = copy(self)
        other.weights = [weights]
        other.runs = self._runs(weights, self.datasets)
        return other

    def own(self, method: str) -> dict[str, Any]:
        return dict(self.config.methods[method])

    def overrides(self, method: str) -> dict[str, Any]:
        """Return the config keys that a method sets, and those that all methods set; keys of a
        section that is given as a whole are dotted, too.
        """
        given = {**self.config.overrides, **self.own(method)}
        return given | {k: v for item in given.items() for k, v in leaves(*item)}

    def task(self, dataset: str) -> str | None:
        """Return the task of a dataset, or ``None`` if nothing is scored on it yet."""
        return next(iter(self.runs.task[self.runs.dataset == dataset]), None)

    def nearest(self, method: str, others: Sequence[str]) -> str:
        """Return the method of ``others`` that differs from ``method`` in the fewest keys."""
        own = self.own(method)

        def differing(other: str) -> int:
            theirs = self.own(other)
            return sum(own.get(k, ...) != theirs.get(k, ...) for k in own | theirs)

        return min(others, key=differing)

    def role(self, method: str) -> str | None:
        """Return the role of a method in the paper, derived from its overrides and metrics.

        A role is ``SFT`` (neither JEPA loss nor replay), ``LLM-JEPA`` (JEPA loss without replay)
        or ``ER-JEPA`` (both). It is ``None`` if the JEPA loss is not the paper's, for replay
        without a JEPA loss, and for controls that the paper does not have.
        """
        set_to = self.overrides(method)
        if {"trains_on", "batch_size_times", "new_adapters"} & set_to.keys():
            return None
        replays = set_to.get("replay.weight") != 0
        if replays and set_to.get("replay.selection") == "current_batch":
            return None
        # The config that the overrides change may have no replay or no JEPA loss.
        logged = self.runs.metrics[self.runs.method == method]
        replays = replays and not any(one.get("memory_size") == 0 for one in logged)
        has_none = any("lm_loss" in one and "jepa_loss" not in one for one in logged)
        if has_none or set_to.get("loss.jepa_weight") == 0:
            return None if replays else "SFT"
        if any(set_to.get(key, ok[0]) not in ok for key, ok in _PAPERS.items()):
            return None
        weights = {key for key in set_to if re.fullmatch(r"loss\.\w+_weight", key)}
        if any(set_to[key] for key in weights - {"loss.lm_weight", "loss.jepa_weight"}):
            return None
        return "ER-JEPA" if replays else "LLM-JEPA"

    def first(self, role: str, method: str | None = None) -> str:
        """Return ``method`` if given, else the first method of a role.

        Raises:
            Unavailable: if the experiment has none of that role.
        """
        if method is not None:
            return method
        for name in self.methods:
            if self.role(name) == role:
                return name
        raise Unavailable(f"no method of the experiment is {role}")

    def main_methods(self) -> list[str]:
        """Return the first method of each role; all methods if they have fewer than two roles."""
        roles = {self.role(name) for name in self.methods}
        methods = [self.first(role) for role in ROLES if role in roles]
        return methods if len(methods) > 1 else self.methods

    def of(
        self, dataset: str | None, methods: Sequence[str], stage: str | None = None
    ) -> pd.DataFrame:
        """Return the rows of ``runs`` of one dataset (``None``: all), in order of ``methods``; in a
        sequence, those of one stage, by default the last.
        """
        datasets = self.datasets if dataset is None else [dataset]
        rows = select(self.runs, dataset=datasets, method=methods)
        if self.config.continual:
            rows = rows[rows.stage == (stage or self.datasets[-1])]
        return rows

    def final(
        self, dataset: str | None, methods: Sequence[str], stage: str | None = None
    ) -> pd.DataFrame:
        """Return the same rows at the last checkpoint of each finished run."""
        rows = self.of(dataset, methods, stage)
        if rows.empty:
            where = "" if dataset is None else f" on {dataset}"
            raise Unavailable(f"no run of these methods{where} has reached its end")
        return rows.drop_duplicates(["cell", "dataset"], keep="last")

    def over_points(self, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
        """Return the accuracy of runs that are scored at every point, [runs, points].

        Without budgets, the points are those that all runs of these methods share.
        """
        rows = self.of(dataset, methods).dropna(subset="point")
        wide = pivot(rows, ["method", "seed"], "point", "accuracy")
        shared = wide.dropna(axis=1).columns
        wide = wide.reindex(columns=self.budgets or sorted(shared)).dropna()
        if wide.shape[1] < 2 or wide.empty:
            raise Unavailable(
                f"no run on {dataset} is scored at all of two checkpoints"
            )
        return wide

    def note(self, rows: pd.DataFrame, methods: Sequence[str]) -> str:
        """Return a sentence on the number of seeds behind each method's value."""
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
        return f"Over {counted(planned, 'seed')}; fewer are finished of {', '.join(short)}."

    def if_seeds(self, text: str) -> str:
        """Return ``text``, a caption's words on the spread over seeds, or "" with one seed."""
        return text if len(self.seeds) > 1 else ""

    def missing(self) -> dict[tuple[str, str], list[int]]:
        """Return the seeds without results of each (dataset, method) that has such seeds."""
        ends = self.runs[self.runs.ends]
        scored = set(zip(ends.dataset, ends.method, ends.seed, strict=True))
        gaps: dict[tuple[str, str], list[int]] = {}
        for cell in product(self.datasets, self.methods, self.seeds):
            if cell not in scored:
                gaps.setdefault(cell[:2], []).append(cell[2])
        return gaps

    def predictions(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Load the predictions of some rows of ``runs`` on the same examples, sorted by example id.

        Columns are ``method seed point id prompt target output extracted correct`` and, if the
        evaluation computed it, ``cosine``.
        """
        frames: list[pd.DataFrame] = []
        for run in runs.itertuples():
            path = self.output / run.predictions
            try:
                # Before there is a frame: pandas refuses lone surrogates.
                rows = [
                    {k: printable(v) for k, v in row.items()}
                    for _, row in read_jsonl(path)
                ]
                answers = pd.DataFrame(rows).sort_values("id")
                answers["correct"] = answers[run.primary].eq(True)
                answers[["prompt", "target", "output"]]  # KeyError if one is missing
            except (OSError, ValueError, KeyError) as error:
                raise Unavailable(
                    f"{path}: predictions cannot be read ({error!r})"
                ) from None
            keys = {"method": run.method, "seed": run.seed, "point": run.point}
            extracted = answers.get("extracted", answers["output"]).map(str)
            frames.append(answers.assign(**keys, extracted=extracted))
            if answers["target"].tolist() != frames[0]["target"].tolist():
                raise Unavailable("the checkpoints were scored on different examples")
        return pd.concat(frames, ignore_index=True)

    def final_predictions(self, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
        """Load the final predictions of the seeds that all methods have, by seed, then method."""
        ends = self.final(dataset, methods)
        shared = ends[ends.groupby("seed").method.transform("size") == len(methods)]
        if shared.empty:
            raise Unavailable(f"no seed is finished of all of {', '.join(methods)}")
        return self.predictions(select(shared, seed=self.seeds))

    def also_scored(self, methods: Sequence[str]) -> pd.DataFrame:
        """Return :meth:`final` for the datasets of ``also_scored``; empty if there are none."""
        rows = self._runs(self.weights[0], list(self.config.also_scored))
        return select(rows[rows.ends], method=methods)

    def _runs(self, weights: str, datasets: Sequence[str]) -> pd.DataFrame:
        rows = self._scored[self._scored.weights == weights]
        # If a checkpoint was scored twice, the last result counts.
        rows = rows.drop_duplicates(["cell", "dataset", "checkpoint"], keep="last")
        rows = rows.astype({"accuracy": float, "budget": float}).sort_values(
            "steps", kind="stable"
        )
        known = {"dataset": datasets, "method": self.methods}
        rows = select(rows, **known, seed=self.seeds).reset_index(drop=True)
        rows["accuracy"] *= 100
        rows["point"] = rows.epoch.where(rows.budget.isna()).astype(float)
        if self.budgets:
            # Joint training has the compute of all stages, so its budgets are other ones.
            staged = [m for m in self.methods if self.config.controls(m).has_stages]
            is_point = rows.budget.isin(self.budgets) & rows.method.isin(staged)
            rows["point"] = rows.budget.where(is_point)
        ends = ~rows.duplicated(["cell", "dataset"], keep="last")
        if self.config.continual:
            ends &= rows.stage == self.datasets[-1]
        return rows.assign(ends=ends)


def pivot(
    rows: pd.DataFrame, index: Sequence[str], columns: str, values: str
) -> pd.DataFrame:
    """Return ``DataFrame.pivot`` with rows and columns in order of appearance."""
    wide = rows.pivot(index=list(index), columns=columns, values=values)
    seen = rows.set_index(list(index)).index.unique()
    return wide.reindex(index=seen, columns=rows[columns].unique())


def select(rows: pd.DataFrame, **names: Sequence[Any]) -> pd.DataFrame:
    """Return the rows whose columns hold one of the given values, sorted in the order of these."""
    for column, allowed in reversed(names.items()):
        rows = rows[rows[column].isin(allowed)]
        rows = rows.sort_values(
            column, key=lambda x: x.map(allowed.index), kind="stable"
        )
    return rows
