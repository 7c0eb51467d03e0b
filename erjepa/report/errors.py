"""Sections on errors in predicted regexes at the end of runs, and who corrects them."""

from collections import Counter
from collections.abc import Iterator, Sequence

from erjepa.analysis.regex_errors import (
    CORRECT,
    ERROR_CATEGORIES,
    corrections,
    is_right_beginning,
    outcome_matrix,
    prediction_category,
    summarize_corrections,
)
from erjepa.analysis.statistics import spread
from erjepa.report.answers import Answers, final_answers
from erjepa.report.drawing import draw_grid
from erjepa.report.figures import COLUMN, Figure, canvas
from erjepa.report.results import Results
from erjepa.report.select import find_method, methods_of, seeds_note
from erjepa.report.table import Column, Table

BEGINNING, IF_STOPPED = "right beginning", "right if it had stopped"
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
    answers = final_answers(results, dataset, [baseline, *methods])
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


def stops(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Where answers end: right ones, right beginnings that run on, and kinds of errors."""
    chosen = methods_of(results, methods)
    answers = final_answers(results, dataset, chosen)
    shares: dict[str, dict[str, list[float]]] = {}
    for by_method in answers.values():
        for method, one in by_method.items():
            count = len(one.targets)
            found = Counter(categories(one))
            begun = map(is_right_beginning, one.targets, one.outputs)
            found |= {BEGINNING: sum(begun)}
            found |= {IF_STOPPED: found[CORRECT] + found[BEGINNING]}
            for name in (CORRECT, BEGINNING, IF_STOPPED, *ERROR_CATEGORIES):
                by_name = shares.setdefault(method, {})
                by_name.setdefault(name, []).append(found[name] / count)
    note = seeds_note(results, {"all of these methods": answers})
    yield Table(
        f"stops_{dataset}",
        f"Predictions on {dataset} in percent of all: {BEGINNING}: the output starts with the "
        f"whole target and runs on; {IF_STOPPED}: these and the correct ones. Right "
        f"beginnings are counted among the errors as well. {note}",
        [
            Column("Method"),
            *(Column(n, scale=100) for n in (CORRECT, BEGINNING, IF_STOPPED)),
            *(Column(n, scale=100) for n in ERROR_CATEGORIES),
        ],
        [
            [method, *(spread(values) for values in by_name.values())]
            for method, by_name in shares.items()
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
    answers = final_answers(results, dataset, [first, second])
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


def categories(answers: Answers) -> list[str]:
    """Category of every prediction."""
    pairs = zip(answers.targets, answers.outputs, strict=True)
    return [prediction_category(target, output) for target, output in pairs]
