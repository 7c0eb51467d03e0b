"""Sections on runs over their checkpoints: accuracy that falls, predictions, alignment."""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from erjepa.analysis.dynamics import drops as drops_of
from erjepa.analysis.dynamics import history_order, transition_rates, transitions
from erjepa.analysis.training_log import read_training_log
from erjepa.report.compute import flops_unit
from erjepa.report.figures import PAGE, Figure, canvas, draw_curves, legend_above, looks
from erjepa.report.paired import paired_table
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import section
from erjepa.report.table import Table, spread

_VERDICTS = ListedColormap(["#e6e6e6", "#262626"])
_RATES = {"Corrected (%)": "Corrected (%)", "Lost (%)": "Lost (%)"}


@section("Drops of accuracy")
def drops(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Accuracy that runs lose between successive checkpoints."""
    chosen = results.named(methods)
    found = drops_of(results.over_points(dataset, chosen)).reset_index()
    groups = found.groupby("method", sort=False)
    columns = {
        "declines": "Declines of a run",
        "largest": "Largest drop (pp)",
        "best_minus_last": "Best less last (pp)",
    }
    frame = spread(found, columns, {"method": "Method"})
    declining = found.declines.gt(0).groupby(found.method, sort=False).sum()
    frame.insert(1, "Seeds that decline", declining.to_numpy())
    frame.insert(2, "Seeds", groups.size().to_numpy())
    frame.insert(7, "Largest of all (pp)", groups.largest.max().to_numpy())
    yield Table(
        f"drops_{dataset}",
        f"Accuracy that runs on {dataset} lose between successive checkpoints, in percentage "
        "points: seeds that lose any, the largest loss within a run, and the best checkpoint "
        "less the last; mean ± one sample standard deviation. "
        f"{results.note(found, chosen)}",
        frame,
    )
    against = [m for m in groups.groups if results.role(m) == "LLM-JEPA"][:1]
    pairs = [(m, one) for one in against for m in groups.groups if m != one]
    if pairs and groups.size().max() > 1:
        yield paired_table(
            results,
            f"drops_paired_{dataset}",
            f"Largest drops on {dataset}: by how much the method's is smaller than the other's.",
            {dataset: -found.set_index(["method", "seed"]).largest},
            pairs,
            claims=[("ER-JEPA", "LLM-JEPA")],
        )


@section("Prediction dynamics")
def dynamics(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy, corrected errors and lost answers from checkpoint to checkpoint."""
    chosen = results.main_methods(methods)
    accuracy = results.over_points(dataset, chosen)
    counts = transitions(_history(results, dataset, accuracy, "correct"))
    size, unit = flops_unit(results.budgets[-1]) if results.budgets else (1, "epoch")
    rates = (
        transition_rates(counts).reset_index().assign(x=lambda rows: rows.point / size)
    )
    means = accuracy.stack().rename("accuracy").reset_index()
    picture, panels = canvas(PAGE, 2.3, 1, 3)
    drawn = [(means.assign(x=means.point / size), "accuracy")]
    drawn += [(rates.dropna(subset=rate), rate) for rate in _RATES]
    names = ("accuracy (%)", "correction rate (%)", "loss rate (%)")
    titles = ("(a) accuracy", "(b) wrong to correct", "(c) correct to wrong")
    label = f"training compute ({unit})" if results.budgets else unit
    for panel, (rows, y), title, name in zip(panels, drawn, titles, names, strict=True):
        draw_curves(panel, rows, "x", y, looks(results.methods))
        panel.set(title=title, xlabel=label, ylabel=name)
        if not results.budgets:
            panel.xaxis.get_major_locator().set_params(integer=True)
    legend_above(picture, panels[0], 5)
    note = results.note(means, chosen)
    yield Figure(
        f"dynamics_{dataset}",
        f"(a) Accuracy on {dataset}; (b) share of wrong predictions that are correct at the "
        "next checkpoint; (c) share of correct predictions that are wrong at the next one; "
        f"each drawn at the later checkpoint. Bands are one sample standard deviation. {note}",
        picture,
    )
    totals = transition_rates(
        counts.groupby(level=["method", "seed"], sort=False).sum()
    )
    yield Table(
        f"dynamics_{dataset}",
        f"Corrected and lost predictions on {dataset}, in percent of wrong and of correct "
        f"ones, all steps between checkpoints together within each seed. {note}",
        spread(totals.reset_index(), _RATES, {"method": "Method"}),
    )


@section("Alignment and correctness")
def alignment(
    results: Results,
    dataset: str,
    methods: Sequence[str] | None = None,
    seed: int | None = None,
) -> Iterator[Table | Figure]:
    """Cosine of prompt and target, and correctness, of the same examples over checkpoints."""
    if methods is None:
        methods = [results.first(role) for role in ("LLM-JEPA", "ER-JEPA")]
    seed = results.seeds[0] if seed is None else seed
    whole = results.over_points(dataset, results.named(methods))
    for method in methods:
        if (method, seed) not in whole.index:
            raise Unavailable(f"{method} on {dataset} with seed {seed} is not finished")
    whole = whole.loc[[(method, seed) for method in methods]]
    correct = _history(results, dataset, whole, "correct")
    cosine = _history(results, dataset, whole, "cosine")
    if cosine.isna().any(axis=None):
        raise Unavailable("the evaluations computed no cosines (key `alignment`)")
    picture, panels = canvas(PAGE, 0.4 + 2.1 * len(methods), len(methods), 3)
    rows = []
    for index, method in enumerate(methods):
        loss, *heat = panels[3 * index : 3 * index + 3]
        runs = results.of(dataset, [method])
        runs = runs[(runs.seed == seed) & runs.point.notna()]
        _draw_loss(loss, results, runs.log.iloc[-1])
        loss.set_ylabel(f"{method}\nJEPA loss")
        is_right, cosines = correct.loc[method], cosine.loc[method]
        order = history_order(is_right)
        style = {"aspect": "auto", "interpolation": "nearest"}
        limits = {"vmin": cosine.min(axis=None), "vmax": 1}
        shades = heat[0].imshow(
            cosines.to_numpy()[order], cmap="cividis", **limits, **style
        )
        picture.colorbar(shades, ax=heat[0], fraction=0.08)
        verdicts = is_right.to_numpy(bool)[order]
        heat[1].imshow(verdicts, cmap=_VERDICTS, vmin=0, vmax=1, **style)
        for axes in heat:
            axes.set_xticks(range(len(runs)), [str(i + 1) for i in range(len(runs))])
            axes.set(yticks=[], ylabel="examples")
        for number, run in enumerate(runs.itertuples(), start=1):
            at, right = cosines[run.point], is_right[run.point].astype(bool)
            means = at[right].mean(), at[~right].mean()
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
        f"alignment_{dataset}",
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
        f"alignment_{dataset}",
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
    found = results.predictions(rows[is_whole & rows.point.notna()])
    if column not in found:
        found[column] = float("nan")
    wide = found.pivot(index=["method", "seed", "id"], columns="point", values=column)
    order = found[["method", "seed", "id"]].drop_duplicates()
    return wide.reindex(pd.MultiIndex.from_frame(order))


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
