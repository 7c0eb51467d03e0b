"""Sections on runs over their checkpoints: accuracy that falls, predictions corrected and lost."""

from collections.abc import Iterator, Sequence

from erjepa.analysis.dynamics import (
    Transition,
    drops,
    total_transition,
    transitions,
)
from erjepa.analysis.statistics import Spread, spread
from erjepa.report.answers import read_answers, require_same_examples
from erjepa.report.compute import flops_unit
from erjepa.report.drawing import draw_curve
from erjepa.report.figures import PAGE, Figure, canvas, legend_above, looks
from erjepa.report.paired import paired_table
from erjepa.report.results import Result, Results, Unavailable
from erjepa.report.select import find_method, main_methods, methods_of, seeds_note
from erjepa.report.table import Column, Table

_RATES = {"correction_rate": "Corrected", "loss_rate": "Lost"}


def dynamics(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy, corrected errors and lost answers from checkpoint to checkpoint."""
    chosen, look = main_methods(results, methods), looks(results.methods)
    points, runs = _points(results, dataset), {}
    for method in chosen:
        if by_seed := whole_runs(results, dataset, method):
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


def accuracy_drops(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Accuracy that runs lose between successive checkpoints."""
    chosen = methods_of(results, methods)
    found = {
        method: {
            seed: drops([row.accuracy for row in run])
            for seed, run in whole_runs(results, dataset, method).items()
        }
        for method in chosen
    }
    if len(_points(results, dataset)) < 2 or not any(found.values()):
        raise Unavailable(f"no run on {dataset} is scored at all of two checkpoints")
    largest = {m: {s: one.largest for s, one in found[m].items()} for m in found}
    yield Table(
        f"drops_{dataset}",
        f"Accuracy that runs on {dataset} lose between successive checkpoints, in percentage "
        "points: seeds that lose any, the largest loss within a run, and the best checkpoint "
        f"less the last; mean ± one sample standard deviation. {seeds_note(results, found)}",
        [
            Column("Method"),
            Column("Seeds that decline"),
            Column("Seeds"),
            Column("Declines of a run"),
            Column("Largest drop (pp)", scale=100),
            Column("Largest of all (pp)", scale=100),
            Column("Best less last (pp)", scale=100),
        ],
        [
            [
                method,
                sum(one.declines > 0 for one in by_seed.values()),
                len(by_seed),
                spread([one.declines for one in by_seed.values()]),
                spread(list(largest[method].values())),
                max(largest[method].values()),
                spread([one.best_minus_last for one in by_seed.values()]),
            ]
            for method, by_seed in found.items()
            if by_seed
        ],
    )
    yield from _paired_drops(results, dataset, largest)


def _paired_drops(
    results: Results, dataset: str, largest: dict[str, dict[int, float]]
) -> Iterator[Table]:
    """Largest drops of methods against those of LLM-JEPA; nothing where there is none."""
    try:
        against = find_method(results, "LLM-JEPA")
        better = {m: {s: -x for s, x in seeds.items()} for m, seeds in largest.items()}
        yield paired_table(
            results,
            f"drops_paired_{dataset}",
            f"Largest drops on {dataset}: by how much the method's is smaller than the other's.",
            {dataset: better},
            [(m, against) for m in largest if m != against and against in largest],
            claims=[("ER-JEPA", "LLM-JEPA")],
        )
    except Unavailable:
        return


def _points(results: Results, dataset: str) -> list[float]:
    """Where checkpoints of different runs compare: budgets if there are any, else epochs."""
    if results.budgets:
        return results.budgets
    ends = (
        row for row in results.rows if row.dataset == dataset and row.budget is None
    )
    return sorted({row.epoch for row in ends})


def whole_runs(results: Results, dataset: str, method: str) -> dict[int, list[Result]]:
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
