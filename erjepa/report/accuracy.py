"""Sections on accuracy at the end of runs: bars, controls, readings."""

from collections.abc import Iterator, Sequence

from erjepa.analysis.statistics import spread
from erjepa.report.drawing import draw_bars, draw_rows
from erjepa.report.figures import COLUMN, Figure, canvas, legend_above, looks
from erjepa.report.paired import paired_table
from erjepa.report.results import Results, Unavailable
from erjepa.report.select import (
    accuracies,
    methods_of,
    replays,
    scored_datasets,
    seeds_note,
)
from erjepa.report.table import Column, Table

ACCURACY = Column("Accuracy (%)", scale=100, best=True)


def main(
    results: Results, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy of every method on every dataset."""
    chosen, names = methods_of(results, methods), scored_datasets(results)
    values = {
        name: {
            method: list(accuracies(results.final(name, method)).values())
            for method in chosen
        }
        for name in names
    }
    if not any(any(bars.values()) for bars in values.values()):
        raise Unavailable("no run has reached its end")
    if len(names) == 1:
        yield from bars(results, names[0], methods, name="main")
        return
    seeds = {
        f"{method} on {name}": results.final(name, method)
        for name in names
        for method in chosen
    }
    note = seeds_note(results, seeds)
    picture, (axes,) = canvas(COLUMN, 2.4)
    styles = {
        name: look for name, look in looks(results.methods).items() if name in chosen
    }
    draw_bars(axes, values, styles)
    axes.set_ylabel("accuracy (%)")
    legend_above(picture, axes, 3)
    yield Figure(
        "main",
        f"Accuracy at the end of the runs: means, one sample standard deviation, and "
        f"single seeds as dots. {note}",
        picture,
    )
    yield Table(
        "main",
        f"Accuracy (%) at the end of the runs: mean ± one sample standard deviation. {note}",
        [Column("Method"), *(Column(n, scale=100, best=True) for n in names)],
        [
            [method]
            + [
                spread(values[name][method]) if values[name][method] else None
                for name in names
            ]
            for method in chosen
        ],
    )


def bars(
    results: Results,
    dataset: str,
    methods: Sequence[str] | None = None,
    name: str = "bars",
    remark: str = "",
) -> Iterator[Table | Figure]:
    """Accuracy of some methods, with least and greatest of the seeds."""
    found = {
        method: accuracies(results.final(dataset, method))
        for method in methods_of(results, methods)
    }
    rows = {method: list(seeds.values()) for method, seeds in found.items() if seeds}
    if not rows:
        raise Unavailable(f"no run of these methods on {dataset} has reached its end")
    note = f"{seeds_note(results, found)} {remark}".rstrip()
    picture, (axes,) = canvas(COLUMN, 0.55 + 0.3 * len(rows))
    draw_rows(axes, rows, looks(results.methods))
    axes.set_xlabel("accuracy (%)")
    yield Figure(
        f"{name}_{dataset}",
        f"Accuracy on {dataset}: means, one sample standard deviation, and single seeds "
        f"as dots. {note}",
        picture,
    )
    yield accuracy_table(f"{name}_{dataset}", f"Accuracy on {dataset}. {note}", found)


def accuracy_table(
    name: str, caption: str, found: dict[str, dict[int, float]]
) -> Table:
    """Mean, deviation, least and greatest accuracy of each method that has any."""
    spreads = {
        method: spread(list(seeds.values())) for method, seeds in found.items() if seeds
    }
    return Table(
        name,
        caption,
        [
            Column("Method"),
            ACCURACY,
            Column("Min", scale=100, best=True),
            Column("Max", scale=100, best=True),
            Column("Seeds"),
        ],
        [
            [method, one, one.least, one.most, one.count]
            for method, one in spreads.items()
        ],
    )


def token_matched(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """A method and others that are trained on as many tokens without replay."""
    if methods is None:
        matched = results.token_matched
        if not matched:
            raise Unavailable("no method stops at another's tokens (stop.tokens_of)")
        methods = [*matched, *dict.fromkeys(matched.values())]
    remark = (
        "All methods lay pairs out alike, so equal tokens are nearly equal compute: "
        "this control repeats the comparison at matched compute."
    )
    yield from bars(results, dataset, methods, name="token_matched", remark=remark)


def current_batch(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Replay of stored pairs against replay of the current batch."""
    controls = [
        method
        for method in results.methods
        if results.overrides(method).get("replay.selection") == "current_batch"
    ]
    if not controls:
        raise Unavailable("no method has replay.selection=current_batch")
    if methods is None:
        methods = controls + [m for m in results.methods if replays(results, m)]
    yield from bars(results, dataset, methods, name="current_batch")
    yield paired_table(
        results,
        f"current_batch_paired_{dataset}",
        f"Replay of stored pairs less that of the current batch on {dataset}.",
        {dataset: {m: accuracies(results.final(dataset, m)) for m in results.methods}},
        [(method, controls[0]) for method in methods if method not in controls],
    )


def readings(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Every reading of the answers, not the accuracy alone."""
    found = {m: results.final(dataset, m) for m in methods_of(results, methods)}
    rows = [row for seeds in found.values() for row in seeds.values()]
    if not rows:
        raise Unavailable(f"no run on {dataset} has reached its end")
    kinds = list(rows[0].readings)
    yield Table(
        f"readings_{dataset}",
        f"Share of right answers (%) on {dataset} by each reading; {rows[0].primary} is "
        f"the accuracy. {seeds_note(results, found)}",
        [Column("Method"), *(Column(one, scale=100, best=True) for one in kinds)],
        [
            [method]
            + [spread([row.readings[k] for row in seeds.values()]) for k in kinds]
            for method, seeds in found.items()
            if seeds
        ],
    )
