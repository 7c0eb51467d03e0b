"""Sections on accuracy over compute and epochs, and on what runs cost."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

import pandas as pd
from matplotlib.axes import Axes

from erjepa.analysis.statistics import normalized_auc
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
    require_few,
)
from erjepa.report.results import EXPERIMENT, Results, Unavailable
from erjepa.report.sections import section
from erjepa.report.table import SD, Table, spread

_UNITS = {1e15: "PFLOPs", 1e12: "TFLOPs", 1e9: "GFLOPs"}


def flops_unit(most: float) -> tuple[float, str]:
    """The largest unit that ``most`` FLOPs are at least one of, and its name."""
    return next(
        ((size, name) for size, name in _UNITS.items() if most >= size), (1, "FLOPs")
    )


@section("Accuracy by dataset and by compute", whole=True)
def figure_1(
    results: Results, methods: Sequence[str] | None = None, matched: str | None = None
) -> Iterator[Figure]:
    """The paper's first figure: accuracy by dataset, and over compute on the first of them.

    ``matched`` is the output, relative to this experiment's, of one at matched compute for
    the right panel. Where there is none, the panel has the checkpoints of this experiment,
    each at the mean compute of its seeds.
    """
    chosen = results.main_methods(methods)
    ends = ends_of(results, chosen)
    look = looks(chosen)
    other, other_look = results, look
    if matched and (results.output / matched / EXPERIMENT).is_file():
        other = Results(results.output / matched)
        by_role = {results.role(method): one for method, one in look.items()}
        other_look = {
            method: by_role[other.role(method)]
            for method in other.main_methods(None)
            if other.role(method) in by_role
        }
    dataset = other.scored_datasets()[0]
    picture, (left, right) = canvas(PAGE, 2.5, 1, 2)
    draw_bars(left, pd.concat(ends.values()), "dataset", "accuracy", look)
    left.set(title="(a) by dataset", ylabel="accuracy (%)")
    _draw_over_compute(right, other, dataset, other_look)
    right.set(title=f"(b) {dataset} over training compute", ylabel="accuracy (%)")
    legend_above(picture, left, len(chosen))
    counts = {
        f"{method} on {name}": (rows.method == method).sum()
        for name, rows in ends.items()
        for method in chosen
    }
    points = (
        "at matched compute"
        if other.budgets
        else "at checkpoints, mean compute of each"
    )
    yield Figure(
        "figure_1",
        f"(a) Accuracy at the end of runs: means, one sample standard deviation, and single "
        f"seeds as dots. (b) Accuracy on {dataset} {points}: means, bands of one sample "
        f"standard deviation. {results.note_of(counts)}",
        picture,
    )


@section("Matched compute", budgets=True)
def matched_compute(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy at equal training compute."""
    budgets, chosen = results.budgets, _at_budgets(results, methods)
    size, unit = flops_unit(budgets[-1])
    rows = results.of(dataset, chosen).dropna(subset="point")
    if rows.empty:
        raise Unavailable(f"no checkpoint at a budget is scored of {dataset}")
    every = rows.groupby(["method", "seed"]).point.transform("nunique") == len(budgets)
    note = results.note(rows[every], chosen)
    picture, (axes,) = canvas(COLUMN, 2.5)
    look = {name: one for name, one in looks(results.methods).items() if name in chosen}
    _draw_over_compute(axes, results, dataset, look)
    axes.set_ylabel("accuracy (%)")
    legend_above(picture, axes, 2)
    yield Figure(
        f"matched_compute_{dataset}",
        f"Accuracy on {dataset} at equal training compute: means, bands of one sample "
        f"standard deviation. {note}",
        picture,
    )
    frame = pd.DataFrame(index=pd.Index(rows.method.unique(), name="Method"))
    for budget in budgets:
        at = rows[rows.point == budget].groupby("method").accuracy
        name = f"{budget / size:.5g}"
        frame[name], frame[name + SD] = at.mean(), at.std()
    if len(budgets) > 1:
        wide = rows[every].pivot(
            index=["method", "seed"], columns="point", values="accuracy"
        )
        areas = [normalized_auc(budgets, values) for values in wide.to_numpy()]
        of_method = pd.Series(areas, wide.index, dtype=float).groupby("method")
        frame["AUC (%)"], frame[f"AUC (%){SD}"] = of_method.mean(), of_method.std()
    yield Table(
        f"matched_compute_{dataset}",
        f"Accuracy (%) on {dataset} at equal training compute in {unit}, mean ± one sample "
        "standard deviation; AUC: area under the curve divided by the range of compute, "
        f"of each seed that has every budget. {note}",
        frame.reset_index(),
        best=[name for name in frame if not name.endswith(SD)],
    )


@section("Single seeds", budgets=True)
def single_seeds(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Figure]:
    """Accuracy at equal training compute, a panel for each seed."""
    rows = results.of(dataset, _at_budgets(results, methods)).dropna(subset="point")
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
        f"single_seeds_{dataset}",
        f"Accuracy on {dataset} of single seeds at equal training compute.",
        picture,
    )


@section("Learning curves")
def learning_curves(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Figure]:
    """Accuracy at the end of each epoch; runs are not matched in compute."""
    rows = results.of(dataset, require_few(results.named(methods)))
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
        f"learning_curves_{dataset}",
        f"Accuracy on {dataset} over epochs: means over the seeds scored there, and one "
        "sample standard deviation. Runs are not matched in compute.",
        picture,
    )


@section("Cost of training")
def cost(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Accuracy, steps, compute, tokens and training time of whole runs."""
    chosen = results.named(methods)
    ends = results.final(dataset, chosen)
    size, unit = flops_unit(ends.total_flops.max())
    columns = {
        "accuracy": "Accuracy (%)",
        "steps": "Steps",
        "total_flops": unit,
        "total_tokens": "Tokens (M)",
        "train_seconds": "Time (min)",
    }
    scaled = ends.assign(
        total_flops=ends.total_flops / size,
        total_tokens=ends.total_tokens * 1e-6,
        train_seconds=ends.train_seconds / 60,
    )
    yield Table(
        f"cost_{dataset}",
        f"Cost of runs on {dataset}. Training compute, all processed tokens, and training "
        f"time without evaluation. {results.note(ends, chosen)}",
        spread(scaled, columns, {"method": "Method"}),
        digits={"Steps": 0, unit: 3, "Tokens (M)": 3},
        best=["Accuracy (%)"],
    )


def _at_budgets(results: Results, methods: Sequence[str] | None) -> list[str]:
    """``methods``, or all but those that stop at the tokens of another."""
    if methods is not None:
        return results.named(methods)
    chosen = [m for m in results.methods if "stop.tokens_of" not in results.own(m)]
    return require_few(chosen)


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
