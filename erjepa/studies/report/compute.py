"""Sections on accuracy over compute and epochs, and on the cost of runs."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from scipy.integrate import trapezoid

from erjepa.studies.report.figures import (
    PERCENT,
    Figure,
    canvas,
    draw_bars,
    draw_curves,
)
from erjepa.studies.report.results import BANDS, DOTS, MEAN, Results, Unavailable, pivot
from erjepa.studies.report.sections import Parts, section
from erjepa.studies.report.table import Table, spread
from erjepa.utils.files import EXPERIMENT

_UNITS = {"PFLOPs": 1e15, "TFLOPs": 1e12, "GFLOPs": 1e9, "FLOPs": 1}


def flops_unit(most: float) -> tuple[float, str]:
    """Return the size and name of the largest unit that does not exceed ``most`` FLOPs."""
    units = ((size, name) for name, size in _UNITS.items() if most >= size)
    return next(units, (1, "FLOPs"))


@section("Accuracy by dataset and by compute", main=True, by_default=True)
def figure_1(results: Results, methods: list[str], matched: str | None = None) -> Parts:
    """The paper's first figure: accuracy by dataset, and over compute on the first dataset.

    ``matched`` is the output folder of an experiment at matched compute for the right panel,
    relative to the folder of this one. If there is none, the panel shows the checkpoints of this
    experiment at the mean compute of their seeds.
    """
    ends, other = results.final(None, methods), results
    names = dict(zip(methods, methods, strict=True))
    if matched and (results.output / matched / EXPERIMENT).is_file():
        other = Results(results.output / matched)
        # A method of the other experiment is drawn as the method with the same role here.
        here = {results.role(method): method for method in methods}
        roles = {m: here.get(other.role(m)) for m in other.main_methods()}
        names = {method: name for method, name in roles.items() if name}
    if other.runs.empty:
        raise Unavailable("nothing is scored yet at matched compute")
    picture, (left, right) = canvas(2)
    draw_bars(left, ends, "dataset", "accuracy", methods)
    left.set_title("(a) by dataset")
    dataset = other.runs.dataset.iloc[0]
    rows = other.of(dataset, list(names)).replace({"method": names})
    _draw_over_compute(right, other, rows, methods)
    right.set_title(f"(b) {dataset} over training compute")
    where = "matched compute" if other.budgets else "checkpoints, mean compute of each"
    yield Figure(
        f"(a) Accuracy at the end of runs{results.if_seeds(DOTS)}. (b) Accuracy on {dataset} "
        f"at {where}{results.if_seeds(BANDS)}. {results.note(ends, methods)}",
        picture,
        columns=2,
    )


@section("Matched compute", budgets=True, curves=True, by_default=True)
def matched_compute(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy at equal training compute, for the last weights and the averaged ones."""
    for weights in results.weights:
        of_which = " of averaged weights" if weights == "ema" else ""
        yield from _at_budgets(results.of_weights(weights), dataset, methods, of_which)


def _at_budgets(
    results: Results, dataset: str, methods: list[str], of_which: str
) -> Parts:
    budgets, (size, unit) = results.budgets, flops_unit(results.budgets[-1])
    rows = results.of(dataset, methods).dropna(subset="point")
    if rows.empty:
        raise Unavailable(f"no checkpoint at a budget is scored of {dataset}")
    wide = pivot(rows, ["method", "seed"], "point", "accuracy").reindex(columns=budgets)
    complete = wide.dropna()
    # Those that train on all datasets at once have other budgets, those on nothing have none.
    sequences = [m for m in methods if results.config.controls(m).has_stages]
    note = results.note(rows, sequences)
    picture, (axes,) = canvas()
    _draw_over_compute(axes, results, rows, results.methods)
    yield Figure(
        f"Accuracy{of_which} on {dataset} at equal training compute{results.if_seeds(BANDS)}. "
        f"{note}",
        picture,
        2.5,
    )
    columns = {f"{budget / size:.5g}": wide[budget] for budget in budgets}
    area = ""
    if len(budgets) > 1:
        area = (
            " AUC: area under the curve divided by the range of compute, over the seeds that "
            "have every budget."
        )
        areas = trapezoid(complete, budgets) / (budgets[-1] - budgets[0])
        columns["AUC (%)"] = pd.Series(areas, complete.index).reindex(wide.index)
    yield Table(
        f"Accuracy (%){of_which} on {dataset} at equal training compute in {unit}"
        f"{results.if_seeds(MEAN)}.{area} {note}",
        spread(columns, {"Method": "method"}),
        best=list(columns),
    )


@section("Single seeds", budgets=True, curves=True, by_default=True)
def single_seeds(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy at equal training compute, in one panel per seed."""
    rows = results.of(dataset, methods).dropna(subset="point")
    picture, panels = canvas(len(results.seeds))
    for seed, panel in zip(results.seeds, panels, strict=True):
        of_seed = rows[rows.seed == seed]
        if len(of_seed):
            _draw_over_compute(panel, results, of_seed, results.methods)
        panel.set(title=f"seed {seed}", ylabel=PERCENT)
        if panel is not panels[0]:
            panel.sharey(panels[0])
    yield Figure(
        f"Accuracy on {dataset} of single seeds at equal training compute.",
        picture,
        1.9,
        columns=min(3, len(panels)),
    )


@section("Learning curves", curves=True, by_default=True)
def learning_curves(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy at the end of each epoch; runs are not matched in compute."""
    rows = results.of(dataset, methods)
    rows = rows[rows.budget.isna() & (rows.epoch > 0) & (rows.epoch % 1 == 0)]
    rows = rows[rows.groupby("method").epoch.transform("nunique") > 1]
    if rows.empty:
        raise Unavailable(f"no run on {dataset} is scored at the end of two epochs")
    picture, (axes,) = canvas()
    draw_curves(axes, rows, "epoch", "accuracy", results.methods, err_style="bars")
    axes.locator_params("x", integer=True)
    means = ": means and sample standard deviations over the seeds scored there"
    yield Figure(
        f"Accuracy on {dataset} over epochs{results.if_seeds(means)}. "
        "Runs are not matched in compute.",
        picture,
        2.5,
    )


@section("Cost of training", by_default=True)
def cost(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy, steps, compute, tokens and training time of whole runs."""
    ends = results.final(dataset, methods, stage=dataset)
    if results.config.continual:
        methods = list(ends.method.unique())  # the others do not train on this dataset
    size, unit = flops_unit(ends.total_flops.max())
    columns = {
        "Accuracy (%)": ends.accuracy,
        "Steps": ends.steps,
        unit: ends.total_flops / size,
        "Tokens (M)": ends.total_tokens * 1e-6,
        "Time (min)": ends.train_seconds / 60,
    }
    yield Table(
        f"Cost of runs on {dataset}: training compute, processed tokens, and training time "
        f"without evaluation. {results.note(ends, methods)}",
        spread(columns, {"Method": ends.method}),
        digits={"Steps": 0, unit: 3, "Tokens (M)": 3},
        best=["Accuracy (%)"],
    )


def _draw_over_compute(
    axes: Axes, results: Results, rows: pd.DataFrame, methods: Sequence[str]
) -> None:
    """Draw accuracy over budgets, or for epochs over the mean compute of their seeds."""
    rows = rows.dropna(subset="point")
    mean = rows.groupby(["method", "point"]).total_flops.transform("mean")
    compute = rows.point if results.budgets else mean
    size, unit = flops_unit(compute.max())
    rows = rows.assign(compute=compute / size)
    draw_curves(axes, rows, "compute", "accuracy", methods)
    axes.set_xlabel(f"training compute ({unit})")
