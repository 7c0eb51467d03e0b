"""Sections on runs over their checkpoints: accuracy that falls, predictions, alignment."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from erjepa.analysis.dynamics import drops as drops_of
from erjepa.analysis.dynamics import history_order, transition_rates, transitions
from erjepa.analysis.training_log import read_training_log
from erjepa.report.compute import flops_unit
from erjepa.report.figures import PAGE, Figure, canvas, draw_curves, legend_above, looks
from erjepa.report.paired import paired_table
from erjepa.report.predictions import read_predictions
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import Parts, section
from erjepa.report.table import Table, spread

_VERDICTS = ListedColormap(["#e6e6e6", "#262626"])


@section("Drops of accuracy")
def drops(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy that runs lose between successive checkpoints."""
    found = drops_of(results.over_points(dataset, methods)).reset_index()
    groups = found.groupby("method", sort=False)
    columns = {"declines": "Declines of a run", "largest": "Largest drop (pp)"}
    columns["best_minus_last"] = "Best less last (pp)"
    frame = spread(found, columns, {"method": "Method"})
    declining = found.declines.gt(0).groupby(found.method, sort=False).sum()
    frame.insert(1, "Seeds that decline", declining.to_numpy())
    frame.insert(2, "Seeds", groups.size().to_numpy())
    frame.insert(7, "Largest of all (pp)", groups.largest.max().to_numpy())
    yield Table(
        f"Accuracy that runs on {dataset} lose between successive checkpoints, in percentage "
        "points: seeds that lose any, the largest loss within a run, and the best checkpoint "
        "less the last; mean ± one sample standard deviation. "
        f"{results.note(found, methods)}",
        frame,
    )
    against = [m for m in groups.groups if results.role(m) == "LLM-JEPA"][:1]
    pairs = [(m, one) for one in against for m in groups.groups if m != one]
    if pairs and groups.size().max() > 1:
        yield paired_table(
            results,
            f"Largest drops on {dataset}: by how much the method's is smaller than the other's.",
            {dataset: -found.set_index(["method", "seed"]).largest},
            pairs,
            claims=[("ER-JEPA", "LLM-JEPA")],
            name="paired",
        )


@section("Prediction dynamics", main=True)
def dynamics(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy, corrected errors and lost answers from checkpoint to checkpoint."""
    accuracy = results.over_points(dataset, methods)
    counts = transitions(_history(results, dataset, accuracy, "correct"))
    size, unit = flops_unit(results.budgets[-1]) if results.budgets else (1, "epoch")
    means = accuracy.stack().rename("accuracy (%)").reset_index()
    rates = transition_rates(counts)
    panels = {
        "(a) accuracy": means,
        "(b) wrong to correct": rates["Corrected (%)"].rename("correction rate (%)"),
        "(c) correct to wrong": rates["Lost (%)"].rename("loss rate (%)"),
    }
    label = f"training compute ({unit})" if results.budgets else unit
    picture, every = canvas(PAGE, 2.3, 1, 3)
    for axes, (title, values) in zip(every, panels.items(), strict=True):
        rows = values.dropna().reset_index()
        rows, y = rows.assign(x=rows.point / size), rows.columns[-1]
        draw_curves(axes, rows, "x", y, looks(results.methods))
        axes.set(title=title, xlabel=label, ylabel=y)
        if not results.budgets:
            axes.xaxis.get_major_locator().set_params(integer=True)
    legend_above(picture, every[0], 5)
    note = results.note(means, methods)
    yield Figure(
        f"(a) Accuracy on {dataset}; (b) share of wrong predictions that are correct at the "
        "next checkpoint; (c) share of correct predictions that are wrong at the next one; "
        f"each drawn at the later checkpoint. Bands are one sample standard deviation. {note}",
        picture,
    )
    totals = transition_rates(
        counts.groupby(level=["method", "seed"], sort=False).sum()
    )
    yield Table(
        f"Corrected and lost predictions on {dataset}, in percent of wrong and of correct "
        f"ones, all steps between checkpoints together within each seed. {note}",
        spread(
            totals.reset_index(), {name: name for name in totals}, {"method": "Method"}
        ),
    )


@section("Alignment and correctness", main=True)
def alignment(
    results: Results, dataset: str, methods: list[str], seed: int | None = None
) -> Parts:
    """Cosine of prompt and target, and correctness, of the same examples over checkpoints."""
    seed = results.seeds[0] if seed is None else seed
    whole = results.over_points(dataset, methods)
    for method in methods:
        if (method, seed) not in whole.index:
            raise Unavailable(f"{method} on {dataset} with seed {seed} is not finished")
    whole = whole.loc[[(method, seed) for method in methods]]
    correct = _history(results, dataset, whole, "correct").astype(bool)
    cosine = _history(results, dataset, whole, "cosine")
    if cosine.isna().any(axis=None):
        raise Unavailable("the evaluations computed no cosines (key `alignment`)")
    runs = results.of(dataset, methods)
    runs = runs[(runs.seed == seed) & runs.point.notna()].set_index("method")
    picture, panels = canvas(PAGE, 0.4 + 2.1 * len(methods), len(methods), 3)
    style = {"aspect": "auto", "interpolation": "nearest"}
    rows = []
    for index, method in enumerate(methods):
        loss, *heat = panels[3 * index : 3 * index + 3]
        _draw_loss(loss, results, runs.log[method].iloc[-1])
        loss.set_ylabel(f"{method}\nJEPA loss")
        right, cosines = correct.loc[method], cosine.loc[method]
        order = history_order(right)
        limits = {"vmin": cosine.min(axis=None), "vmax": 1}
        shades = heat[0].imshow(cosines.iloc[order], cmap="cividis", **limits, **style)
        picture.colorbar(shades, ax=heat[0], fraction=0.08)
        heat[1].imshow(right.iloc[order], cmap=_VERDICTS, vmin=0, vmax=1, **style)
        numbers = range(right.shape[1])
        for axes in heat:
            axes.set_xticks(numbers, [str(number + 1) for number in numbers])
            axes.set(yticks=[], ylabel="examples")
        for number, run in enumerate(runs.loc[[method]].itertuples(), start=1):
            at, is_right = cosines[run.point], right[run.point]
            means = at[is_right].mean(), at[~is_right].mean()
            rows.append([method, number, run.checkpoint, run.accuracy, *means])
    for axes, title in zip(
        panels, ("JEPA loss", "cosine", "correct (dark)"), strict=False
    ):
        axes.set_title(title)
    for axes, name in zip(
        panels[-3:], ("step", "checkpoint", "checkpoint"), strict=True
    ):
        axes.set_xlabel(name)
    yield Figure(
        f"JEPA loss in training, and for each test example of {dataset} the cosine of its "
        "embeddings of prompt and target, and whether its prediction is right (dark), at each "
        "checkpoint. Rows are sorted within each method by correctness at the last "
        f"checkpoint, then at the ones before. Seed {seed}.",
        picture,
    )
    names = [
        "Method",
        "Number",
        "Checkpoint",
        "Accuracy (%)",
        "Cosine, right",
        "Cosine, wrong",
    ]
    yield Table(
        f"Accuracy on {dataset} and mean cosine of prompt and target, of examples that are "
        f"right and wrong at each checkpoint. Seed {seed}.",
        pd.DataFrame(rows, columns=names),
        digits={"Cosine, right": 4, "Cosine, wrong": 4},
    )


def _history(
    results: Results, dataset: str, runs: pd.DataFrame, column: str
) -> pd.DataFrame:
    """``column`` of predictions: a row an example of a run of ``runs``, a column a point."""
    rows = results.of(dataset, list(runs.index.unique("method")))
    is_whole = pd.MultiIndex.from_frame(rows[["method", "seed"]]).isin(runs.index)
    found = read_predictions(results, rows[is_whole & rows.point.notna()])
    if column not in found:
        found[column] = float("nan")
    keys = ["method", "seed", "id"]
    wide = found.pivot(index=keys, columns="point", values=column)
    return wide.reindex(pd.MultiIndex.from_frame(found[keys].drop_duplicates()))


def _draw_loss(axes: Axes, results: Results, name: str) -> None:
    log = results.output / name
    steps = read_training_log(log) if log.is_file() else {}
    points = {
        step: one["jepa_loss"] for step, one in steps.items() if "jepa_loss" in one
    }
    if points:
        axes.plot(points.keys(), points.values(), color="black", linewidth=0.8)
        axes.set_ylim(bottom=0)
        axes.grid()
    else:
        axes.text(0.5, 0.5, "not logged", ha="center", transform=axes.transAxes)
