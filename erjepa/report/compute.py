"""Sections on accuracy over compute and epochs, and on what runs cost."""

from collections.abc import Iterator, Sequence
from math import ceil

from matplotlib.figure import Figure as Canvas

from erjepa.analysis.statistics import normalized_auc, spread
from erjepa.report.drawing import draw_curve
from erjepa.report.figures import COLUMN, PAGE, Figure, canvas, legend_above, looks
from erjepa.report.results import Result, Results, Unavailable
from erjepa.report.select import accuracies, few_methods, methods_of, seeds_note
from erjepa.report.table import Column, Table

_UNITS = {1e15: "PFLOPs", 1e12: "TFLOPs", 1e9: "GFLOPs"}


def flops_unit(most: float) -> tuple[float, str]:
    """The largest unit that ``most`` FLOPs are at least one of, and its name."""
    return next(
        ((size, name) for size, name in _UNITS.items() if most >= size), (1, "FLOPs")
    )


def matched_compute(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy at equal training compute."""
    budgets, chosen = _budgets(results), _budget_methods(results, methods)
    size, unit = flops_unit(budgets[-1])
    look = looks(results.methods)
    found = {
        method: [accuracies(results.at_budget(dataset, method, b)) for b in budgets]
        for method in chosen
    }
    if not any(any(points) for points in found.values()):
        raise Unavailable(f"no checkpoint at a budget is scored of {dataset}")
    whole = {method: _seeds_at_all(points) for method, points in found.items()}
    note = seeds_note(results, whole)
    picture, (axes,) = canvas(COLUMN, 2.5)
    for method, points in found.items():
        reached = [(b, p) for b, p in zip(budgets, points, strict=True) if p]
        draw_curve(
            axes,
            [budget / size for budget, _ in reached],
            [spread(list(point.values())) for _, point in reached],
            method,
            look[method],
        )
    axes.set(xlabel=f"training compute ({unit})", ylabel="accuracy (%)")
    axes.grid()
    legend_above(picture, axes, 2)
    yield Figure(
        f"matched_compute_{dataset}",
        f"Accuracy on {dataset} at equal training compute: means, bands of one sample "
        f"standard deviation. {note}",
        picture,
    )
    areas = [Column("AUC (%)", scale=100, best=True)] if len(budgets) > 1 else []
    yield Table(
        f"matched_compute_{dataset}",
        f"Accuracy (%) on {dataset} at equal training compute in {unit}, mean ± one sample "
        "standard deviation; AUC: area under the curve divided by the range of compute, "
        f"of each seed that has every budget. {note}",
        [
            Column("Method"),
            *(Column(f"{b / size:.5g}", scale=100, best=True) for b in budgets),
            *areas,
        ],
        [
            [
                method,
                *(spread(list(p.values())) if p else None for p in points),
                *[_auc(budgets, points, whole[method])][: len(areas)],
            ]
            for method, points in found.items()
        ],
    )


def single_seeds(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Figure]:
    """Accuracy at equal training compute, a panel for each seed."""
    budgets, chosen = _budgets(results), _budget_methods(results, methods)
    size, unit = flops_unit(budgets[-1])
    look = looks(results.methods)
    columns = min(3, len(results.seeds))
    rows = ceil(len(results.seeds) / columns)
    picture, panels = canvas(
        max(COLUMN, PAGE * columns / 3), 0.5 + 1.7 * rows, rows, columns, sharey=True
    )
    for panel in panels[len(results.seeds) :]:
        panel.set_axis_off()
    for seed, panel in zip(results.seeds, panels, strict=False):
        for method in chosen:
            points = [
                (budget / size, 100 * at[seed].accuracy)
                for budget in budgets
                if seed in (at := results.at_budget(dataset, method, budget))
            ]
            style = look[method]
            panel.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=style.color,
                linestyle=style.line,
                marker=style.marker,
                label=method,
            )
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


def learning_curves(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Figure]:
    """Accuracy at the end of each epoch; runs are not matched in compute."""
    picture = draw_epochs(results, dataset, few_methods(results, methods))
    if picture is None:
        raise Unavailable(f"no run on {dataset} is scored at the end of two epochs")
    yield Figure(
        f"learning_curves_{dataset}",
        f"Accuracy on {dataset} over epochs: means over the seeds scored there, and one "
        "sample standard deviation. Runs are not matched in compute.",
        picture,
    )


def draw_epochs(
    results: Results, dataset: str, methods: Sequence[str]
) -> Canvas | None:
    """Accuracy over epochs of the methods that have two of them; None if none has."""
    curves = {method: epoch_curve(results, dataset, method) for method in methods}
    curves = {method: curve for method, curve in curves.items() if len(curve) > 1}
    if not curves:
        return None
    picture, (axes,) = canvas(COLUMN, 2.5)
    for method, curve in curves.items():
        points = [spread(values) for values in curve.values()]
        look = looks(results.methods)[method]
        draw_curve(axes, list(curve), points, method, look, error_bars=True)
    axes.set(xlabel="epoch", ylabel="accuracy (%)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid()
    legend_above(picture, axes, 2)
    return picture


def epoch_curve(
    results: Results, dataset: str, method: str
) -> dict[float, list[float]]:
    """Epoch to the accuracies of seeds at its end, in order of epochs."""
    curve: dict[float, list[float]] = {}
    for seed in results.seeds:
        for row in results.checkpoints(dataset, method, seed):
            if row.budget is None and row.epoch > 0 and float(row.epoch).is_integer():
                curve.setdefault(row.epoch, []).append(row.accuracy)
    return dict(sorted(curve.items()))


def cost(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Compute, tokens and time of whole runs."""
    found = {m: results.final(dataset, m) for m in methods_of(results, methods)}
    found = {method: seeds for method, seeds in found.items() if seeds}
    if not found:
        raise Unavailable(f"no run on {dataset} has reached its end")
    yield cost_table(results, f"cost_{dataset}", f"Cost of runs on {dataset}.", found)


def cost_table(
    results: Results, name: str, caption: str, found: dict[str, dict[int, Result]]
) -> Table:
    """Accuracy, steps, compute, tokens and training time of runs that have ended."""
    most = max(row.total_flops for seeds in found.values() for row in seeds.values())
    size, unit = flops_unit(most)
    return Table(
        name,
        f"{caption} Training compute, all processed tokens, and training time without "
        f"evaluation. {seeds_note(results, found)}",
        [
            Column("Method"),
            Column("Accuracy (%)", scale=100, best=True),
            Column("Steps", digits=0),
            Column(unit, digits=3, scale=1 / size),
            Column("Tokens (M)", digits=3, scale=1e-6),
            Column("Time (min)", scale=1 / 60),
        ],
        [
            [method]
            + [
                spread([getattr(row, field) for row in seeds.values()])
                for field in (
                    *("accuracy", "steps", "total_flops", "total_tokens"),
                    "train_seconds",
                )
            ]
            for method, seeds in found.items()
        ],
    )


def _budgets(results: Results) -> list[float]:
    if not results.budgets:
        raise Unavailable("the experiment has no compute budgets (key `budgets`)")
    return results.budgets


def _budget_methods(results: Results, methods: Sequence[str] | None) -> list[str]:
    """``methods``, or all but those that stop at the tokens of another."""
    if methods is not None:
        return methods_of(results, methods)
    return [m for m in few_methods(results, None) if m not in results.token_matched]


def _seeds_at_all(points: list[dict[int, float]]) -> set[int]:
    return set.intersection(*(set(point) for point in points))


def _auc(budgets: list[float], points: list[dict[int, float]], seeds: set[int]):
    areas = [normalized_auc(budgets, [p[seed] for p in points]) for seed in seeds]
    return spread(areas) if areas else None
