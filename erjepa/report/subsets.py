"""Sections on accuracy by structure and length of the target regex."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from erjepa.analysis.statistics import spread
from erjepa.analysis.subsets import Shares, accuracy_by_length, accuracy_by_structure
from erjepa.report.answers import Answers, final_answers
from erjepa.report.drawing import draw_bars, draw_curve
from erjepa.report.figures import COLUMN, Figure, canvas, legend_above, looks
from erjepa.report.results import Results
from erjepa.report.select import main_methods, seeds_note
from erjepa.report.table import Column, Table


def structures(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy by what the target regex contains."""
    chosen = main_methods(results, methods)
    answers = final_answers(results, dataset, chosen)
    shares = _shares(answers, chosen, accuracy_by_structure)
    subsets = {name: _rates(shares, name) for name in shares[chosen[0]][0]}
    picture, (axes,) = canvas(COLUMN, 2.6)
    styles = {
        name: look for name, look in looks(results.methods).items() if name in chosen
    }
    draw_bars(axes, {name: rates for name, rates in subsets.items() if rates}, styles)
    axes.tick_params("x", rotation=30)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    axes.set_ylabel("accuracy (%)")
    legend_above(picture, axes, 3)
    note = seeds_note(results, {"all of these methods": answers})
    caption = (
        f"Accuracy on {dataset} by structure of the target; subsets overlap. {note}"
    )
    yield Figure(f"structures_{dataset}", caption, picture)
    yield _subset_table(f"structures_{dataset}", caption, "Structure", shares)


def lengths(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy by the length of the target regex."""
    chosen = main_methods(results, methods)
    answers = final_answers(results, dataset, chosen)
    shares = _shares(answers, chosen, accuracy_by_length)
    groups = list(shares[chosen[0]][0])
    picture, (axes,) = canvas(COLUMN, 2.4)
    for method in chosen:
        known = [i for i, name in enumerate(groups) if _rates(shares, name)]
        points = [spread(_rates(shares, groups[i])[method]) for i in known]
        draw_curve(axes, known, points, method, looks(results.methods)[method])
    axes.set_xticks(range(len(groups)), groups)
    axes.set(xlabel="length of the target (regex tokens)", ylabel="accuracy (%)")
    axes.grid()
    legend_above(picture, axes, 3)
    note = seeds_note(results, {"all of these methods": answers})
    caption = f"Accuracy on {dataset} by regex tokens of the target. {note}"
    yield Figure(
        f"lengths_{dataset}",
        f"{caption} Bands are one sample standard deviation.",
        picture,
    )
    yield _subset_table(f"lengths_{dataset}", caption, "Regex tokens", shares)


def _shares(
    answers: Mapping[int, Mapping[str, Answers]],
    methods: Sequence[str],
    accuracy_by: Callable[[Sequence[str], Sequence[bool]], Shares],
) -> dict[str, list[Shares]]:
    """Method to the accuracy of each seed on every subset."""
    return {
        method: [
            accuracy_by(by_method[method].targets, by_method[method].correct)
            for by_method in answers.values()
        ]
        for method in methods
    }


def _rates(shares: dict[str, list[Shares]], subset: str) -> dict[str, list[float]]:
    """Method to the accuracy of each seed on a subset; empty if the subset is."""
    if not next(iter(shares.values()))[0][subset][1]:
        return {}
    return {
        method: [right / total for right, total in (one[subset] for one in by_seed)]
        for method, by_seed in shares.items()
    }


def _subset_table(
    name: str, caption: str, heading: str, shares: dict[str, list[Shares]]
) -> Table:
    first = next(iter(shares.values()))[0]
    return Table(
        name,
        f"{caption} Accuracy in percent.",
        [Column(heading), Column("Examples"), *(Column(m, scale=100) for m in shares)],
        [
            [subset, total]
            + [
                spread(rates[method]) if (rates := _rates(shares, subset)) else None
                for method in shares
            ]
            for subset, (_, total) in first.items()
        ],
    )
