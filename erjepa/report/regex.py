"""Sections on what is right and wrong in predicted regexes, at the end of runs."""

from collections.abc import Iterator, Sequence

from erjepa.analysis.regex_errors import (
    CORRECT,
    ERROR_CATEGORIES,
    corrections,
    outcome_matrix,
    prediction_category,
    summarize_corrections,
)
from erjepa.analysis.statistics import spread
from erjepa.analysis.subsets import Shares, accuracy_by_length, accuracy_by_structure
from erjepa.report.answers import Answers, answers_by_seed
from erjepa.report.figures import (
    COLUMN,
    Figure,
    canvas,
    draw_bars,
    draw_curve,
    draw_grid,
    legend_above,
    looks,
)
from erjepa.report.results import Results
from erjepa.report.select import find_method, main_methods, seeds_note
from erjepa.report.table import Column, Table

# Names that fit under a column of a figure.
_SHORT = {
    "over-generation": "over",
    "under-generation": "under",
    "same-length mismatch": "same length",
}


def corrected_errors(
    results: Results,
    dataset: str,
    baseline: str | None = None,
    methods: Sequence[str] | None = None,
) -> Iterator[Table]:
    """Errors of a baseline that other methods have right."""
    baseline = find_method(results, "SFT", baseline)
    if methods is None:
        methods = [find_method(results, role) for role in ("LLM-JEPA", "ER-JEPA")]
    answers = _final_answers(results, dataset, [baseline, *methods])
    found = {}  # of each method, of each seed
    for seed, by_method in answers.items():
        theirs = categories(by_method[baseline])
        for method in methods:
            mine = categories(by_method[method])
            found[method, seed] = corrections(theirs, mine)
    note = seeds_note(results, {"all of these methods": answers})
    rows = []
    for category in ERROR_CATEGORIES:
        for method in methods:
            by_seed = [found[method, seed][category] for seed in answers]
            errors, corrected, rate = summarize_corrections(by_seed)
            rows.append([category, errors, method, corrected, rate])
    yield Table(
        f"corrections_{dataset}",
        f"Errors of {baseline} on {dataset} that are predicted exactly by other methods, on "
        "the same inputs and seed. Rates are taken within each seed before averaging. "
        f"Outputs that are no regex are apart from the categories by length. {note}",
        [
            Column(f"{baseline} error"),
            Column("Errors", digits=1),
            Column("Method"),
            Column("Corrected", digits=1),
            Column("Rate (%)", scale=100),
        ],
        rows,
    )
    columns = [Column(f"{baseline} error"), Column("Seed"), Column("Errors")]
    for method in methods:
        columns += [
            Column(f"{method} corrected"),
            Column(f"{method} rate (%)", scale=100),
        ]
    yield Table(
        f"corrections_by_seed_{dataset}",
        f"Corrected errors of {baseline} on {dataset} by seed.",
        columns,
        [
            [category, str(seed), found[methods[0], seed][category].errors]
            + [
                cell
                for method in methods
                for one in [found[method, seed][category]]
                for cell in (one.corrected, one.rate)
            ]
            for category in ERROR_CATEGORIES
            for seed in answers
        ],
    )


def outcomes(
    results: Results,
    dataset: str,
    errors_of: str | None = None,
    outcomes_of: str | None = None,
) -> Iterator[Table | Figure]:
    """What one method predicts where another errs."""
    first = find_method(results, "LLM-JEPA", errors_of)
    second = find_method(results, "ER-JEPA", outcomes_of)
    answers = _final_answers(results, dataset, [first, second])
    matrix = outcome_matrix(
        *(
            [name for one in answers.values() for name in categories(one[method])]
            for method in (first, second)
        )
    )
    names = [CORRECT, *ERROR_CATEGORIES]
    totals = {row: sum(matrix[row].values()) for row in ERROR_CATEGORIES}
    shares = [
        [matrix[row][name] / totals[row] if totals[row] else None for name in names]
        for row in ERROR_CATEGORIES
    ]
    picture, (axes,) = canvas(COLUMN, 2.1)
    draw_grid(
        axes,
        shares,
        [["" if one is None else f"{100 * one:.1f}" for one in row] for row in shares],
        [
            f"{row.replace(' mismatch', '')}\nn = {totals[row]}"
            for row in ERROR_CATEGORIES
        ],
        [_SHORT.get(name, name).replace(" ", "\n") for name in names],
    )
    axes.set(xlabel=f"{second} prediction", ylabel=f"{first} error")
    note = seeds_note(results, {"both methods": answers})
    caption = (
        f"Predictions of {second} on {dataset} where {first} errs, on the same input and "
        f"seed, as percentages of the errors n in a row, pooled over seeds. {note}"
    )
    yield Figure(f"outcomes_{dataset}", caption, picture)
    yield Table(
        f"outcomes_{dataset}",
        caption,
        [Column(f"{first} error"), Column("n")]
        + [Column(f"{name} (%)", digits=1, scale=100) for name in names],
        [
            [row, totals[row], *values]
            for row, values in zip(ERROR_CATEGORIES, shares, strict=True)
        ],
    )


def structures(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy by what the target regex contains."""
    chosen = main_methods(results, methods)
    answers = _final_answers(results, dataset, chosen)
    shares = {
        method: [
            accuracy_by_structure(by_method[method].targets, by_method[method].correct)
            for by_method in answers.values()
        ]
        for method in chosen
    }
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
    answers = _final_answers(results, dataset, chosen)
    shares = {
        method: [
            accuracy_by_length(by_method[method].targets, by_method[method].correct)
            for by_method in answers.values()
        ]
        for method in chosen
    }
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


def categories(answers: Answers) -> list[str]:
    """Category of every prediction."""
    pairs = zip(answers.targets, answers.outputs, strict=True)
    return [prediction_category(target, output) for target, output in pairs]


def _final_answers(
    results: Results, dataset: str, methods: Sequence[str]
) -> dict[int, dict[str, Answers]]:
    rows = {method: results.final(dataset, method) for method in methods}
    return answers_by_seed(results, rows)


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
