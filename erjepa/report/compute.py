"""Sections on accuracy over compute and epochs, and on what runs cost."""

from collections.abc import Mapping
from math import ceil

import pandas as pd
from matplotlib.axes import Axes

from erjepa.analysis.statistics import normalized_auc
from erjepa.io import EXPERIMENT
from erjepa.report.accuracy import ends_of
from erjepa.report.figures import (
    COLUMN,
    PAGE,
    Figure,
    Look,
    canvas,
    draw_bars,
    draw_curves,
    legend_above,
    looks,
)
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import Parts, section
from erjepa.report.table import SD, Table, spread

_UNITS = {1e15: "PFLOPs", 1e12: "TFLOPs", 1e9: "GFLOPs"}


def flops_unit(most: float) -> tuple[float, str]:
    """The largest unit that ``most`` FLOPs are at least one of, and its name."""
    return next(
        ((size, name) for size, name in _UNITS.items() if most >= size), (1, "FLOPs")
    )


@section("Accuracy by dataset and by compute", whole=True, main=True)
def figure_1(results: Results, methods: list[str], matched: str | None = None) -> Parts:
    """The paper's first figure: accuracy by dataset, and over compute on the first of them.

    ``matched`` is the output, relative to this experiment's, of one at matched compute for
    the right panel. Where there is none, the panel has the checkpoints of this experiment,
    each at the mean compute of its seeds.
    """
    ends, note = ends_of(results, methods)
    look = looks(methods)
    other, other_look = results, look
    if matched and (results.output / matched / EXPERIMENT).is_file():
        other = Results(results.output / matched)
        by_role = {results.role(method): one for method, one in look.items()}
        other_look = {
            method: by_role[other.role(method)]
            for method in other.main_methods()
            if other.role(method) in by_role
        }
    dataset = other.scored_datasets()[0]
    picture, (left, right) = canvas(PAGE, 2.5, 1, 2)
    draw_bars(left, ends, "dataset", "accuracy", look)
    left.set(title="(a) by dataset", ylabel="accuracy (%)")
    _draw_over_compute(right, other, dataset, other_look)
    right.set(title=f"(b) {dataset} over training compute", ylabel="accuracy (%)")
    legend_above(picture, left, len(methods))
    points = (
        "at matched compute"
        if other.budgets
        else "at checkpoints, mean compute of each"
    )
    yield Figure(
        f"(a) Accuracy at the end of runs: means, one sample standard deviation, and single "
        f"seeds as dots. (b) Accuracy on {dataset} {points}: means, bands of one sample "
        f"standard deviation. {note}",
        picture,
    )


@section("Matched compute", budgets=True, curves=True)
def matched_compute(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy at equal training compute."""
    budgets, (size, unit) = results.budgets, flops_unit(results.budgets[-1])
    rows = results.of(dataset, methods).dropna(subset="point")
    if rows.empty:
        raise Unavailable(f"no checkpoint at a budget is scored of {dataset}")
    is_whole = rows.groupby(["method", "seed"]).point.transform("nunique") == len(
        budgets
    )
    note = results.note(rows[is_whole], methods)
    picture, (axes,) = canvas(COLUMN, 2.5)
    look = looks(results.methods)
    _draw_over_compute(axes, results, dataset, {name: look[name] for name in methods})
    axes.set_ylabel("accuracy (%)")
    legend_above(picture, axes, 2)
    yield Figure(
        f"Accuracy on {dataset} at equal training compute: means, bands of one sample "
        f"standard deviation. {note}",
        picture,
    )
    frame = pd.DataFrame(index=pd.Index(rows.method.unique(), name="Method"))
    columns = {f"{b / size:.5g}": rows[rows.point == b].accuracy for b in budgets}
    if len(budgets) > 1:
        runs = rows[is_whole].groupby(["method", "seed"])
        areas = runs.accuracy.transform(
            lambda run: normalized_auc(budgets, run.to_list())
        )
        columns["AUC (%)"] = areas[rows.point == budgets[-1]]
    for name, values in columns.items():
        of_method = values.groupby(rows.method)
        frame[name], frame[name + SD] = of_method.mean(), of_method.std()
    yield Table(
        f"Accuracy (%) on {dataset} at equal training compute in {unit}, mean ± one sample "
        "standard deviation; AUC: area under the curve divided by the range of compute, "
        f"of each seed that has every budget. {note}",
        frame.reset_index(),
        best=list(columns),
    )


@section("Single seeds", budgets=True, curves=True)
def single_seeds(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy at equal training compute, a panel for each seed."""
    rows = results.of(dataset, methods).dropna(subset="point")
    size, unit = flops_unit(results.budgets[-1])
    columns = min(3, len(results.seeds))
    lines = ceil(len(results.seeds) / columns)
    picture, panels = canvas(
        max(COLUMN, PAGE * columns / 3), 0.5 + 1.7 * lines, lines, columns, sharey=True
    )
    for panel in panels[len(results.seeds) :]:
        panel.set_axis_off()
    for seed, panel in zip(results.seeds, panels, strict=False):
        for method, own in rows[rows.seed == seed].groupby("method", sort=False):
            style = looks(results.methods)[method].line
            panel.plot(own.point / size, own.accuracy, label=method, **style)
        panel.set_title(f"seed {seed}")
        panel.grid()
    picture.supxlabel(f"training compute ({unit})", size=8)
    picture.supylabel("accuracy (%)", size=8)
    legend_above(picture, panels[0], 5 if columns == 3 else 2)
    yield Figure(
        f"Accuracy on {dataset} of single seeds at equal training compute.", picture
    )


@section("Learning curves", curves=True)
def learning_curves(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy at the end of each epoch; runs are not matched in compute."""
    rows = results.of(dataset, methods)
    rows = rows[rows.budget.isna() & (rows.epoch > 0) & (rows.epoch % 1 == 0)]
    rows = rows[rows.groupby("method").epoch.transform("nunique") > 1]
    if rows.empty:
        raise Unavailable(f"no run on {dataset} is scored at the end of two epochs")
    picture, (axes,) = canvas(COLUMN, 2.5)
    draw_curves(
        axes, rows, "epoch", "accuracy", looks(results.methods), error_bars=True
    )
    axes.set(xlabel="epoch", ylabel="accuracy (%)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    legend_above(picture, axes, 2)
    yield Figure(
        f"Accuracy on {dataset} over epochs: means over the seeds scored there, and one "
        "sample standard deviation. Runs are not matched in compute.",
        picture,
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
    axes: Axes, results: Results, dataset: str, look: Mapping[str, Look]
) -> None:
    """Accuracy at budgets, or at epochs over the mean compute of their seeds."""
    rows = results.of(dataset, list(look)).dropna(subset="point")
    mean = rows.groupby(["method", "point"]).total_flops.transform("mean")
    compute = rows.point if results.budgets else mean
    size, unit = flops_unit(compute.max())
    draw_curves(axes, rows.assign(compute=compute / size), "compute", "accuracy", look)
    axes.set_xlabel(f"training compute ({unit})")
