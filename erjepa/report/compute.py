"""Sections on accuracy over compute and epochs, and on what runs cost."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from erjepa.analysis.statistics import normalized_auc
from erjepa.io import EXPERIMENT
from erjepa.report.figures import Figure, canvas, draw_bars, draw_curves, looks
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import Parts, section
from erjepa.report.table import Table, spread, spread_across

_UNITS = {1e15: "PFLOPs", 1e12: "TFLOPs", 1e9: "GFLOPs"}


def flops_unit(most: float) -> tuple[float, str]:
    """The largest unit that ``most`` FLOPs are at least one of, and its name."""
    return next(
        ((size, name) for size, name in _UNITS.items() if most >= size), (1, "FLOPs")
    )


@section("Accuracy by dataset and by compute", main=True)
def figure_1(results: Results, methods: list[str], matched: str | None = None) -> Parts:
    """The paper's first figure: accuracy by dataset, and over compute on the first of them.

    ``matched`` is the output, relative to this experiment's, of one at matched compute for
    the right panel. Where there is none, the panel has the checkpoints of this experiment,
    each at the mean compute of its seeds.
    """
    ends, other, roles = results.final(None, methods), results, {}
    if matched and (results.output / matched / EXPERIMENT).is_file():
        other = Results(results.output / matched)
        # A method of the other is drawn as the one that has its role here.
        here = {results.role(method): method for method in methods}
        roles = {m: here.get(other.role(m)) for m in other.main_methods()}
    names = [m for m in roles if roles[m]] if roles else methods
    picture, (left, right) = canvas(2)
    draw_bars(left, ends, "dataset", "accuracy", looks(methods))
    left.set(title="(a) by dataset", xlabel="", ylabel="accuracy (%)")
    left.grid(axis="y")
    dataset = other.runs.dataset.iloc[0]
    rows = other.of(dataset, names).replace({"method": roles})
    _draw_over_compute(right, other, rows, looks(methods))
    right.set(title=f"(b) {dataset} over training compute", ylabel="accuracy (%)")
    where = "matched compute" if other.budgets else "checkpoints, mean compute of each"
    yield Figure(
        f"(a) Accuracy at the end of runs: means, one sample standard deviation, and single "
        f"seeds as dots. (b) Accuracy on {dataset} at {where}: means, bands of one sample "
        f"standard deviation. {results.note(ends, methods)}",
        picture,
        columns=2,
    )


@section("Matched compute", budgets=True, curves=True)
def matched_compute(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy at equal training compute."""
    budgets, (size, unit) = results.budgets, flops_unit(results.budgets[-1])
    rows = results.of(dataset, methods).dropna(subset="point")
    if rows.empty:
        raise Unavailable(f"no checkpoint at a budget is scored of {dataset}")
    whole = rows[rows.groupby("cell").point.transform("nunique") == len(budgets)]
    note = results.note(whole, methods)
    picture, (axes,) = canvas()
    _draw_over_compute(axes, results, rows, looks(results.methods))
    axes.set_ylabel("accuracy (%)")
    yield Figure(
        f"Accuracy on {dataset} at equal training compute: means, bands of one sample "
        f"standard deviation. {note}",
        picture,
        2.5,
    )
    names = [f"{budget / size:.5g}" for budget in budgets]
    cells = rows.assign(column=(rows.point / size).map("{:.5g}".format))
    if len(budgets) > 1:
        names.append("AUC (%)")
        areas = whole.groupby("cell").accuracy.agg(
            lambda run: normalized_auc(budgets, run.to_list())
        )
        ends = whole.drop_duplicates("cell").assign(column=names[-1])
        cells = pd.concat([cells, ends.assign(accuracy=ends.cell.map(areas))])
    yield Table(
        f"Accuracy (%) on {dataset} at equal training compute in {unit}, mean ± one sample "
        "standard deviation; AUC: area under the curve divided by the range of compute, "
        f"of each seed that has every budget. {note}",
        spread_across(cells, "accuracy", {"method": "Method"}, "column", names),
        best=names,
    )


@section("Single seeds", budgets=True, curves=True)
def single_seeds(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy at equal training compute, a panel for each seed."""
    rows = results.of(dataset, methods).dropna(subset="point")
    picture, panels = canvas(len(results.seeds))
    for seed, panel in zip(results.seeds, panels, strict=True):
        own = rows[rows.seed == seed]
        if len(own):
            _draw_over_compute(panel, results, own, looks(results.methods))
        panel.set(title=f"seed {seed}", ylabel="accuracy (%)")
    for panel in panels[1:]:
        panel.sharey(panels[0])
    yield Figure(
        f"Accuracy on {dataset} of single seeds at equal training compute.",
        picture,
        1.9,
        columns=min(3, len(panels)),
    )


@section("Learning curves", curves=True)
def learning_curves(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy at the end of each epoch; runs are not matched in compute."""
    rows = results.of(dataset, methods)
    rows = rows[rows.budget.isna() & (rows.epoch > 0) & (rows.epoch % 1 == 0)]
    rows = rows[rows.groupby("method").epoch.transform("nunique") > 1]
    if rows.empty:
        raise Unavailable(f"no run on {dataset} is scored at the end of two epochs")
    picture, (axes,) = canvas()
    look = looks(results.methods)
    draw_curves(axes, rows, "epoch", "accuracy", look, err_style="bars")
    axes.set(xlabel="epoch", ylabel="accuracy (%)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    yield Figure(
        f"Accuracy on {dataset} over epochs: means over the seeds scored there, and one "
        "sample standard deviation. Runs are not matched in compute.",
        picture,
        2.5,
    )


@section("Cost of training")
def cost(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy, steps, compute, tokens and training time of whole runs."""
    ends = results.final(dataset, methods)
    size, unit = flops_unit(ends.total_flops.max())
    scaled = ends.assign(
        total_flops=ends.total_flops / size,
        total_tokens=ends.total_tokens * 1e-6,
        train_seconds=ends.train_seconds / 60,
    )
    columns = {"accuracy": "Accuracy (%)", "steps": "Steps", "total_flops": unit}
    columns |= {"total_tokens": "Tokens (M)", "train_seconds": "Time (min)"}
    yield Table(
        f"Cost of runs on {dataset}. Training compute, all processed tokens, and training "
        f"time without evaluation. {results.note(ends, methods)}",
        spread(scaled, columns, {"method": "Method"}),
        digits={"Steps": 0, unit: 3, "Tokens (M)": 3},
        best=["Accuracy (%)"],
    )


def _draw_over_compute(
    axes: Axes, results: Results, rows: pd.DataFrame, look: Mapping[str, Any]
) -> None:
    """Accuracy at budgets, or at epochs over the mean compute of their seeds."""
    rows = rows.dropna(subset="point")
    mean = rows.groupby(["method", "point"]).total_flops.transform("mean")
    compute = rows.point if results.budgets else mean
    size, unit = flops_unit(compute.max())
    draw_curves(axes, rows.assign(compute=compute / size), "compute", "accuracy", look)
    axes.set_xlabel(f"training compute ({unit})")
