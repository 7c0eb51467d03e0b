"""The paper's first figure: accuracy by dataset, and accuracy against training compute."""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes

from erjepa.analysis.statistics import Spread, spread
from erjepa.report.compute import flops_unit
from erjepa.report.drawing import draw_bars, draw_curve
from erjepa.report.figures import PAGE, Figure, Look, canvas, legend_above, looks
from erjepa.report.results import EXPERIMENT, Result, Results, Unavailable
from erjepa.report.select import (
    accuracies,
    main_methods,
    role,
    scored_datasets,
    seeds_note,
)


def figure_1(
    results: Results,
    methods: Sequence[str] | None = None,
    matched: str | None = None,
) -> Iterator[Figure]:
    """Left, accuracy on every dataset; right, accuracy over compute on the first of them.

    ``matched`` is the output, relative to this experiment's, of one at matched compute for
    the right panel. Where there is none, the panel has the checkpoints of this experiment,
    each at the mean compute of its seeds.
    """
    chosen, names = main_methods(results, methods), scored_datasets(results)
    values = {
        name: {m: list(accuracies(results.final(name, m)).values()) for m in chosen}
        for name in names
    }
    if not any(any(bars.values()) for bars in values.values()):
        raise Unavailable("no run has reached its end")
    look = looks(chosen)
    other, other_look = results, look
    if matched and (results.output / matched / EXPERIMENT).is_file():
        other = Results(results.output / matched)
        by_role = {role(results, method): one for method, one in look.items()}
        other_look = {
            method: by_role[role(other, method)]
            for method in main_methods(other, None)
            if role(other, method) in by_role
        }
    dataset = scored_datasets(other)[0]
    picture, (left, right) = canvas(PAGE, 2.5, 1, 2)
    draw_bars(left, values, look)
    left.set(title="(a) by dataset", ylabel="accuracy (%)")
    curves = {method: _curve(other, dataset, method) for method in other_look}
    _draw_curves(right, curves, other_look)
    right.set(title=f"(b) {dataset} over training compute", ylabel="accuracy (%)")
    legend_above(picture, left, len(chosen))
    seeds = {
        f"{method} on {name}": results.final(name, method)
        for name in names
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
        f"standard deviation. {seeds_note(results, seeds)}",
        picture,
    )


def _curve(results: Results, dataset: str, method: str) -> list[tuple[float, Spread]]:
    """Compute and accuracy at budgets, or else at the ends of epochs."""
    by_point: dict[float, list[Result]] = {}
    for seed in results.seeds:
        for row in results.checkpoints(dataset, method, seed):
            if (row.budget is None) != bool(results.budgets):
                by_point.setdefault(row.budget or row.epoch, []).append(row)
    return [
        (
            point
            if results.budgets
            else spread([row.total_flops for row in rows]).mean,
            spread([row.accuracy for row in rows]),
        )
        for point, rows in sorted(by_point.items())
    ]


def _draw_curves(
    axes: Axes,
    curves: Mapping[str, Sequence[tuple[float, Spread]]],
    look: Mapping[str, Look],
) -> None:
    most = max((x for curve in curves.values() for x, _ in curve), default=1)
    size, unit = flops_unit(most)
    for method, curve in curves.items():
        x = [flops / size for flops, _ in curve]
        draw_curve(axes, x, [one for _, one in curve], method, look[method])
    axes.set_xlabel(f"training compute ({unit})")
    axes.grid()
