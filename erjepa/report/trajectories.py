"""Sections on predictions over checkpoints: corrected, lost and aligned."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Canvas

from erjepa.analysis.dynamics import (
    Transition,
    history_order,
    total_transition,
    transitions,
)
from erjepa.analysis.statistics import Spread, spread
from erjepa.analysis.training_log import read_training_log
from erjepa.report.answers import Answers, read_answers, require_same_examples
from erjepa.report.compute import flops_unit
from erjepa.report.drawing import draw_curve
from erjepa.report.figures import PAGE, Figure, canvas, legend_above, looks
from erjepa.report.results import Result, Results, Unavailable
from erjepa.report.select import find_method, main_methods, seeds_note
from erjepa.report.table import Column, Table

_RATES = {"correction_rate": "Corrected", "loss_rate": "Lost"}
_VERDICTS = ListedColormap(["#e6e6e6", "#262626"])


def dynamics(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy, corrected errors and lost answers from checkpoint to checkpoint."""
    chosen, look = main_methods(results, methods), looks(results.methods)
    points, runs = _points(results, dataset), {}
    for method in chosen:
        if by_seed := _whole_runs(results, dataset, method):
            runs[method] = by_seed
    if len(points) < 2 or not runs:
        raise Unavailable(f"no run on {dataset} is scored at all of two checkpoints")
    steps = {
        method: [_transitions(results, run) for run in by_seed.values()]
        for method, by_seed in runs.items()
    }
    size, unit = flops_unit(points[-1]) if results.budgets else (1, "epoch")
    x = [point / size for point in points]
    picture, panels = canvas(PAGE, 2.3, 1, 3)
    for method, by_seed in runs.items():
        accuracy = [
            spread([run[i].accuracy for run in by_seed.values()])
            for i in range(len(points))
        ]
        draw_curve(panels[0], x, accuracy, method, look[method])
        for panel, rate in zip(panels[1:], _RATES, strict=True):
            known = _rates_over_points(steps[method], rate)
            at = [x[1 + i] for i in known]
            draw_curve(panel, at, list(known.values()), method, look[method])
    titles = ("(a) accuracy", "(b) wrong to correct", "(c) correct to wrong")
    names = ("accuracy (%)", "correction rate (%)", "loss rate (%)")
    for panel, title, name in zip(panels, titles, names, strict=True):
        label = f"training compute ({unit})" if results.budgets else unit
        panel.set(title=title, xlabel=label, ylabel=name)
        if not results.budgets:
            panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid()
    legend_above(picture, panels[0], 5)
    note = seeds_note(results, {m: runs.get(m, {}) for m in chosen})
    yield Figure(
        f"dynamics_{dataset}",
        f"(a) Accuracy on {dataset}; (b) share of wrong predictions that are correct at the "
        "next checkpoint; (c) share of correct predictions that are wrong at the next one; "
        f"each drawn at the later checkpoint. Bands are one sample standard deviation. {note}",
        picture,
    )
    totals = {
        m: [total_transition(one) for one in by_run] for m, by_run in steps.items()
    }
    yield Table(
        f"dynamics_{dataset}",
        f"Corrected and lost predictions on {dataset}, in percent of wrong and of correct "
        f"ones, all steps between checkpoints together within each seed. {note}",
        [
            Column("Method"),
            *(Column(f"{one} (%)", scale=100) for one in _RATES.values()),
        ],
        [
            [method, *(_spread_of(by_run, rate) for rate in _RATES)]
            for method, by_run in totals.items()
        ],
    )


def alignment(
    results: Results,
    dataset: str,
    methods: Sequence[str] | None = None,
    seed: int | None = None,
) -> Iterator[Table | Figure]:
    """Cosine of prompt and target, and correctness, of the same examples over checkpoints."""
    if methods is None:
        methods = [find_method(results, role) for role in ("LLM-JEPA", "ER-JEPA")]
    seed = results.seeds[0] if seed is None else seed
    found = {}
    for method in methods:
        run = _whole_runs(results, dataset, method).get(seed)
        if run is None:
            raise Unavailable(f"{method} on {dataset} with seed {seed} is not finished")
        found[method] = run, [read_answers(results, row) for row in run]
    every = [one for _, answers in found.values() for one in answers]
    require_same_examples(every)
    if any(one.cosines is None for one in every):
        raise Unavailable("the evaluations computed no cosines (key `alignment`)")
    lowest = min(min(one.cosines) for one in every)
    picture, panels = canvas(PAGE, 0.4 + 2.1 * len(methods), len(methods), 3)
    rows = []
    for index, (method, (run, answers)) in enumerate(found.items()):
        loss, *heat = panels[3 * index : 3 * index + 3]
        _draw_loss(loss, results, run[-1])
        loss.set_ylabel(f"{method}\nJEPA loss")
        _draw_histories(picture, heat, answers, lowest)
        for number, (row, one) in enumerate(zip(run, answers, strict=True), start=1):
            means = (_mean_cosine(one, right) for right in (True, False))
            rows.append([method, number, row.checkpoint, row.accuracy, *means])
    titles = ("JEPA loss", "cosine", "correct (dark)")
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(title)
    names = ("step", "checkpoint", "checkpoint")
    for axes, name in zip(panels[-3:], names, strict=True):
        axes.set_xlabel(name)
    yield Figure(
        f"alignment_{dataset}",
        f"JEPA loss in training, and for each test example of {dataset} the cosine of its "
        "embeddings of prompt and target, and whether its prediction is right (dark), at each "
        "checkpoint. Rows are sorted within each method by correctness at the last "
        f"checkpoint, then at the ones before. Seed {seed}.",
        picture,
    )
    yield Table(
        f"alignment_{dataset}",
        f"Accuracy on {dataset} and mean cosine of prompt and target, of examples that are "
        f"right and wrong at each checkpoint. Seed {seed}.",
        [
            Column("Method"),
            Column("Number"),
            Column("Checkpoint"),
            Column("Accuracy (%)", scale=100),
            Column("Cosine, right", digits=4),
            Column("Cosine, wrong", digits=4),
        ],
        rows,
    )


def _points(results: Results, dataset: str) -> list[float]:
    """Where checkpoints of different runs compare: budgets if there are any, else epochs."""
    if results.budgets:
        return results.budgets
    ends = (
        row for row in results.rows if row.dataset == dataset and row.budget is None
    )
    return sorted({row.epoch for row in ends})


def _whole_runs(results: Results, dataset: str, method: str) -> dict[int, list[Result]]:
    """Seed to its checkpoints at all points, of seeds that have them all."""
    points = _points(results, dataset)
    runs = {}
    for seed in results.seeds:
        run = [
            row
            for row in results.checkpoints(dataset, method, seed)
            if (row.budget is not None) == bool(results.budgets)
        ]
        if points and len(run) == len(points):
            runs[seed] = run
    return runs


def _transitions(results: Results, run: Sequence[Result]) -> list[Transition]:
    answers = [read_answers(results, row) for row in run]
    require_same_examples(answers)
    return transitions([one.correct for one in answers])


def _spread_of(parts: Sequence[Transition], rate: str) -> Spread | None:
    values = [getattr(one, rate) for one in parts]
    known = [value for value in values if value is not None]
    return spread(known) if known else None


def _rates_over_points(
    by_run: Sequence[Sequence[Transition]], rate: str
) -> dict[int, Spread]:
    """Index of the step between checkpoints to the rate over seeds, where it is defined."""
    spreads = [_spread_of(parts, rate) for parts in zip(*by_run, strict=True)]
    return {i: one for i, one in enumerate(spreads) if one is not None}


def _draw_histories(
    picture: Canvas, panels: Sequence[Axes], answers: Sequence[Answers], lowest: float
) -> None:
    """Cosines, from ``lowest`` to 1, and verdicts: a row an example, a column a checkpoint."""
    order = history_order([one.correct for one in answers])
    cosines = np.array([one.cosines for one in answers]).T[order]
    correct = np.array([one.correct for one in answers]).T[order]
    style = {"aspect": "auto", "interpolation": "nearest"}
    shades = panels[0].imshow(cosines, cmap="cividis", vmin=lowest, vmax=1, **style)
    picture.colorbar(shades, ax=panels[0], fraction=0.08)
    panels[1].imshow(correct, cmap=_VERDICTS, vmin=0, vmax=1, **style)
    for axes in panels:
        axes.set_xticks(range(len(answers)), [str(i + 1) for i in range(len(answers))])
        axes.set_yticks([])
        axes.set_ylabel("examples")


def _mean_cosine(answers: Answers, right: bool) -> float | None:
    """Over the examples that are right, or wrong; None if there is none."""
    pairs = zip(answers.cosines, answers.correct, strict=True)
    found = [cosine for cosine, is_right in pairs if is_right == right]
    return float(np.mean(found)) if found else None


def _draw_loss(axes: Axes, results: Results, row: Result) -> None:
    log = results.output / row.log
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
