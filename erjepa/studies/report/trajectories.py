"""Sections on changes between checkpoints: drops of accuracy, predictions, alignment."""

from contextlib import suppress
from typing import Annotated, Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from pydantic import Field

from erjepa.studies.report.compute import flops_unit
from erjepa.studies.report.figures import Figure, canvas, draw_curves
from erjepa.studies.report.paired import paired_table
from erjepa.studies.report.results import Results, Unavailable, pivot
from erjepa.studies.report.sections import Parts, section
from erjepa.studies.report.table import Table, spread
from erjepa.studies.statistics.transitions import (
    history_order,
    transition_rates,
    transitions,
)
from erjepa.studies.training_log import read_training_log

_EXAMPLE = ["method", "seed", "id"]


@section("Drops of accuracy", by_default=True)
def drops(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy that runs lose between successive checkpoints."""
    accuracy = results.over_points(dataset, methods)
    losses = (accuracy.shift(axis=1) - accuracy).iloc[:, 1:]  # 0 where equal, never -0
    declines, largest = (losses > 0).sum(axis=1), losses.max(axis=1).clip(lower=0)
    columns = {
        "Declines of a run": declines,
        "Largest drop (pp)": largest,
        "Best minus last (pp)": accuracy.max(axis=1) - accuracy.iloc[:, -1],
    }
    frame = spread(columns, {"Method": "method"})
    by = {"level": "method", "sort": False}
    frame.insert(1, "Seeds that decline", (declines > 0).groupby(**by).sum().array)
    frame.insert(2, "Seeds", declines.groupby(**by).size().array)
    frame.insert(7, "Largest of all (pp)", largest.groupby(**by).max().array)
    yield Table(
        f"Drops of accuracy on {dataset} from one checkpoint to the next, in percentage points: "
        "seeds with a drop, drops of a run, its largest drop, and its best accuracy minus its "
        f"last{results.if_seeds('; mean ± sample standard deviation')}. "
        f"{results.note(accuracy.reset_index(), methods)}",
        frame,
    )
    against = [m for m in frame.Method if results.role(m) == "LLM-JEPA"][:1]
    pairs = [(m, one) for one in against for m in frame.Method if m != one]
    with suppress(Unavailable):  # no two methods share two seeds
        yield paired_table(
            results,
            f"Largest drop of the other method on {dataset} minus that of the method.",
            {dataset: -largest},
            pairs,
            claims=[("ER-JEPA", "LLM-JEPA")],
            name="paired",
        )


@section("Drops at equal accuracy")
def drops_by_accuracy(
    results: Results,
    dataset: str,
    methods: list[str],
    width: Annotated[int, Field(ge=1, le=100)] = 10,
) -> Parts:
    """How often accuracy falls from one checkpoint to the next, by the accuracy at the first.

    A method that has learned less has less to lose. So each column compares steps that start
    from similar accuracy, in bins of ``width`` percentage points.
    """
    accuracy = results.over_points(dataset, methods)
    before = accuracy.iloc[:, :-1].stack()
    after = accuracy.shift(-1, axis=1).iloc[:, :-1].stack()
    last = (100 - 1) // width  # with 100% itself
    steps = pd.DataFrame(
        {"declines": after < before, "bin": (before.round(9) // width).clip(upper=last)}
    )
    counts = steps.groupby(["method", "bin"], sort=False).declines.agg(["sum", "size"])
    cells = counts.apply(lambda row: f"{row['sum']} of {row['size']}", axis=1)
    wide = (
        cells.unstack("bin").sort_index(axis=1).reindex(accuracy.index.unique("method"))
    )
    wide.columns = [
        f"{b * width:.0f} to {min((b + 1) * width, 100):.0f}" for b in wide.columns
    ]
    frame = wide.reset_index().rename(columns={"method": "Method"})
    yield Table(
        f"How often accuracy on {dataset} falls from one checkpoint to the next, by the "
        "accuracy at the first of the two, in percent. "
        f"{results.note(accuracy.reset_index(), methods)}",
        frame.astype(object).where(frame.notna(), None),
    )


@section("Prediction dynamics", main=True, by_default=True)
def dynamics(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy, corrected errors and lost correct answers from checkpoint to checkpoint."""
    accuracy = results.over_points(dataset, methods)
    predictions = _predictions(results, dataset, accuracy)
    correct = pivot(predictions, _EXAMPLE, "point", "correct").astype(bool)
    counts = transitions(correct)
    rates = transition_rates(counts)
    size, unit = flops_unit(results.budgets[-1]) if results.budgets else (1, "epoch")
    drawn = {
        "(a) accuracy": accuracy.stack().rename("accuracy (%)"),
        "(b) wrong to correct": rates["Corrected (%)"].rename("correction rate (%)"),
        "(c) correct to wrong": rates["Lost (%)"].rename("loss rate (%)"),
    }
    picture, panels = canvas(3)
    for axes, (title, values) in zip(panels, drawn.items(), strict=True):
        rows = values.dropna().reset_index()
        rows["point"] /= size
        draw_curves(axes, rows, "point", values.name, results.methods)
        label = f"training compute ({unit})" if results.budgets else unit
        axes.set(title=title, xlabel=label, ylabel=values.name)
        if not results.budgets:
            axes.locator_params("x", integer=True)
    note = results.note(accuracy.reset_index(), methods)
    bands = results.if_seeds(" Bands are one sample standard deviation.")
    yield Figure(
        f"(a) Accuracy on {dataset}. (b) Fraction of wrong predictions that are correct at the "
        "next checkpoint. (c) Fraction of correct predictions that are wrong at the next one. "
        f"Both are drawn at the later checkpoint.{bands} {note}",
        picture,
        columns=3,
    )
    totals = transition_rates(counts.groupby(["method", "seed"], sort=False).sum())
    yield Table(
        f"Predictions on {dataset} that change from one checkpoint to the next: corrected, in "
        f"percent of the wrong ones, and lost, in percent of the correct ones. {note}",
        spread(totals, {"Method": "method"}),
    )


@section("Alignment and correctness", main=True, by_default=True)
def alignment(
    results: Results,
    dataset: str,
    methods: list[str],
    seed: int | None = None,
    column: Literal["cosine", "cosine_of_input"] = "cosine",
) -> Parts:
    """Cosine of embeddings, and correctness, of each example over checkpoints.

    ``column``: ``cosine``, of prediction and target, or ``cosine_of_input``, of prompt and target.
    """
    seed = results.seeds[0] if seed is None else seed
    compared = (
        "prompt and target" if column == "cosine_of_input" else "prediction and target"
    )
    accuracy = results.over_points(dataset, methods)
    for method in methods:
        if (method, seed) not in accuracy.index:
            raise Unavailable(f"{method} on {dataset} with seed {seed} is not finished")
    accuracy = accuracy.loc[[(method, seed) for method in methods]]
    predictions = _predictions(results, dataset, accuracy)
    if column not in predictions or predictions[column].isna().any():
        raise Unavailable("the evaluations computed no cosines (key `alignment`)")
    cosine = pivot(predictions, _EXAMPLE, "point", column)
    correct = pivot(predictions, _EXAMPLE, "point", "correct").astype(bool)
    runs = results.of(dataset, methods)
    runs = runs[(runs.seed == seed) & runs.point.isin(accuracy.columns)]
    picture, panels = canvas(3 * len(methods))
    style: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "vmax": 1}
    least, two = cosine.min(axis=None), ListedColormap(["#d9d9d9", "#0f5f94"])
    rows = []
    for i, method in enumerate(methods):
        of_method, right = runs[runs.method == method], correct.loc[method]
        cosines, (loss, *heat) = cosine.loc[method], panels[3 * i : 3 * i + 3]
        _draw_loss(loss, results, of_method.log.iloc[-1])
        loss.set(title=f"{method}: JEPA loss", xlabel="step")
        order = history_order(right)
        shades = heat[0].imshow(cosines.iloc[order], "cividis", vmin=least, **style)
        picture.colorbar(shades, ax=heat[0], fraction=0.08)
        heat[1].imshow(right.iloc[order], two, vmin=0, **style)
        for axes, title in zip(heat, ("cosine", "correct (dark)"), strict=True):
            numbers = range(1, len(of_method) + 1)
            axes.set_xticks(range(len(of_method)), map(str, numbers))
            axes.set(title=title, xlabel="checkpoint", ylabel="examples", yticks=[])
        for number, run in enumerate(of_method.itertuples(), start=1):
            means = cosines[run.point].groupby(right[run.point]).mean()
            cells = [method, number, run.checkpoint, run.accuracy]
            rows.append([*cells, means.get(True), means.get(False)])
    yield Figure(
        f"JEPA loss in training; the cosine between the embeddings of {compared} of each "
        f"test example of {dataset} at each checkpoint; and whether its prediction is correct "
        "(dark). Examples are sorted by correctness at the last checkpoint, then at earlier "
        f"ones. Seed {seed}.",
        picture,
        columns=3,
    )
    names = ["Method", "Number", "Checkpoint", "Accuracy (%)"]
    split = ["Cosine, correct", "Cosine, wrong"]
    yield Table(
        f"Accuracy on {dataset}, and mean cosine between {compared} of correct and of "
        f"wrong examples, at each checkpoint. Seed {seed}.",
        pd.DataFrame(rows, columns=names + split),
        digits=dict.fromkeys(split, 4),
    )


def _predictions(
    results: Results, dataset: str, accuracy: pd.DataFrame
) -> pd.DataFrame:
    """Load the predictions of the runs and points of ``accuracy``, [runs, points]."""
    rows = results.of(dataset, list(accuracy.index.unique("method")))
    is_whole = pd.MultiIndex.from_frame(rows[["method", "seed"]]).isin(accuracy.index)
    return results.predictions(rows[is_whole & rows.point.isin(accuracy.columns)])


def _draw_loss(axes: Axes, results: Results, name: str) -> None:
    log = results.output / name
    steps = pd.DataFrame(read_training_log(log) if log.is_file() else {}).T
    if "jepa_loss" in steps:
        axes.plot(steps.jepa_loss.dropna(), color="#0f7fc0", linewidth=0.8)
        axes.set_ylim(bottom=0)
        axes.grid()
    else:
        axes.text(0.5, 0.5, "not logged", ha="center", transform=axes.transAxes)
