"""Sections on regexes at the end of runs: how they err, who corrects it, and which are hard."""

from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from erjepa.analysis.regex_errors import (
    CORRECT,
    ERROR_CATEGORIES,
    is_right_beginning,
    prediction_category,
)
from erjepa.analysis.regex_tokens import LENGTH_GROUPS, STRUCTURES, length_group
from erjepa.analysis.regex_tokens import structures as structures_of
from erjepa.report.figures import (
    Figure,
    canvas,
    draw_bars,
    draw_curves,
    draw_grid,
    looks,
)
from erjepa.report.predictions import by_method, final_predictions
from erjepa.report.results import Results
from erjepa.report.sections import Parts, section
from erjepa.report.table import Table, spread, spread_across

_BEGINNING, _IF_STOPPED = "right beginning", "right if it had stopped"
# Names that fit under a column of a figure.
_SHORT = {"over-generation": "over", "under-generation": "under"}
_SHORT |= {"same-length mismatch": "same\nlength", "syntax error": "syntax\nerror"}


def categories(results: Results, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
    """Predictions at the ends of runs, each with its ``category``."""
    found = final_predictions(results, dataset, methods)
    pairs = zip(found.target, found.output, strict=True)
    return found.assign(category=[prediction_category(*pair) for pair in pairs])


@section("Corrected errors", task="nl_rx", main=True)
def corrections(
    results: Results, dataset: str, methods: list[str], baseline: str | None = None
) -> Parts:
    """Errors of a baseline, by default SFT, that other methods have right."""
    baseline = results.first("SFT", baseline)
    others = [method for method in methods if method != baseline]
    found = categories(results, dataset, [baseline, *others])
    error, wide = f"{baseline} error", by_method(found, "category")
    right = wide[others].eq(CORRECT).assign(**{error: wide[baseline]}).reset_index()
    right = right.melt([error, "seed", "id"], others, "Method", "right")
    cells = [ERROR_CATEGORIES, found.seed.unique(), others]
    cells = pd.MultiIndex.from_product(cells, names=[error, "seed", "Method"])
    counts = right.groupby(cells.names).right.agg(["size", "sum"])
    counts = counts.reindex(cells, fill_value=0).set_axis(
        ["Errors", "Corrected"], axis=1
    )
    counts["Rate (%)"] = 100 * counts.Corrected / counts.Errors.where(counts.Errors > 0)
    counts = counts.reset_index()
    names = ["Errors", "Corrected", "Rate (%)"]
    summary = spread(
        counts, {name: name for name in names}, {error: error, "Method": "Method"}
    )
    summary.insert(3, "Method", summary.pop("Method"))
    yield Table(
        f"Errors of {baseline} on {dataset} that are predicted exactly by other methods, on "
        "the same inputs and seed. Rates are taken within each seed before averaging. "
        "Outputs that are no regex are apart from the categories by length. "
        f"{results.note(found, [baseline, *others])}",
        summary,
        digits={"Errors": 1, "Corrected": 1},
    )
    by_seed = counts.drop_duplicates([error, "seed"])[[error, "seed", "Errors"]]
    by_seed = by_seed.rename(columns={"seed": "Seed"}).astype({"Seed": str})
    for method, own in counts.groupby("Method", sort=False):
        by_seed[f"{method} corrected"] = own.Corrected.array
        by_seed[f"{method} rate (%)"] = own["Rate (%)"].array
    caption = f"Corrected errors of {baseline} on {dataset} by seed."
    yield Table(caption, by_seed, name="by_seed")


@section("Where answers end", task="nl_rx")
def stops(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Where answers end: right ones, right beginnings that run on, and kinds of errors."""
    found = categories(results, dataset, methods)
    shares = pd.get_dummies(found.category).reindex(
        columns=[CORRECT, *ERROR_CATEGORIES], fill_value=False
    )
    pairs = zip(found.target, found.output, strict=True)
    shares.insert(1, _BEGINNING, [is_right_beginning(*pair) for pair in pairs])
    shares.insert(2, _IF_STOPPED, shares[CORRECT] | shares[_BEGINNING])
    by_seed = (100.0 * shares).groupby([found.method, found.seed], sort=False).mean()
    yield Table(
        f"Predictions on {dataset} in percent of all: {_BEGINNING}: the output starts with the "
        f"whole target and runs on; {_IF_STOPPED}: these and the correct ones. Right "
        f"beginnings are counted among the errors as well. {results.note(found, methods)}",
        spread(by_seed.reset_index(), {n: n for n in shares}, {"method": "Method"}),
    )


@section("Outcomes of errors", task="nl_rx", main=True)
def outcomes(
    results: Results,
    dataset: str,
    methods: list[str],
    errors_of: str | None = None,
    outcomes_of: str | None = None,
) -> Parts:
    """What one method predicts where another errs, by default ER-JEPA and LLM-JEPA."""
    first = results.first("LLM-JEPA", errors_of)
    second = results.first("ER-JEPA", outcomes_of)
    found = categories(results, dataset, [first, second])
    wide = by_method(found, "category")
    counts = pd.crosstab(wide[first], wide[second]).reindex(
        index=ERROR_CATEGORIES, columns=[CORRECT, *ERROR_CATEGORIES], fill_value=0
    )
    totals = counts.sum(axis=1)
    shares = 100 * counts.div(totals.where(totals > 0), axis=0)
    rows = [f"{x.replace(' mismatch', '')}\nn = {totals[x]}" for x in counts.index]
    picture, (axes,) = canvas()
    draw_grid(axes, shares.set_axis(rows).rename(columns=_SHORT), digits=1)
    axes.set(xlabel=f"{second} prediction", ylabel=f"{first} error")
    caption = (
        f"Predictions of {second} on {dataset} where {first} errs, on the same input and "
        f"seed, as percentages of the errors n in a row, pooled over seeds. "
        f"{results.note(found, [first, second])}"
    )
    yield Figure(caption, picture, 2.1)
    frame = shares.add_suffix(" (%)")
    digits = dict.fromkeys(frame, 1)
    frame.insert(0, "n", totals)
    yield Table(caption, frame.rename_axis(f"{first} error").reset_index(), digits)


@section("Structure of the target", task="nl_rx", main=True)
def structures(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy by what the target regex contains."""
    rates, frame, note = _subsets(results, dataset, methods, STRUCTURES, structures_of)
    picture, (axes,) = canvas()
    draw_bars(axes, rates, "accuracy", "subset", looks(results.methods))
    axes.set(xlabel="accuracy (%)", ylabel="")
    axes.grid(axis="x")
    caption = (
        f"Accuracy on {dataset} by structure of the target; subsets overlap. {note}"
    )
    yield Figure(caption, picture, 3.2)
    frame = frame.rename(columns={"subset": "Structure"})
    yield Table(f"{caption} Accuracy in percent.", frame)


@section("Length of the target", task="nl_rx", main=True)
def lengths(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy by the length of the target regex."""
    rates, frame, note = _subsets(
        results, dataset, methods, LENGTH_GROUPS, lambda target: [length_group(target)]
    )
    picture, (axes,) = canvas()
    draw_curves(axes, rates, "subset", "accuracy", looks(results.methods))
    axes.set(xlabel="length of the target (regex tokens)", ylabel="accuracy (%)")
    caption = f"Accuracy on {dataset} by regex tokens of the target. {note}"
    yield Figure(f"{caption} Bands are one sample standard deviation.", picture)
    frame = frame.rename(columns={"subset": "Regex tokens"})
    yield Table(f"{caption} Accuracy in percent.", frame)


def _subsets(
    results: Results,
    dataset: str,
    methods: Sequence[str],
    names: Sequence[str],
    subsets_of: Callable[[str], Iterable[str]],
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Accuracy of each seed on each subset of targets, its table, and the note on seeds."""
    found = final_predictions(results, dataset, methods)
    subsets = [list(subsets_of(target)) for target in found.target]
    parts = found.assign(subset=subsets, accuracy=100.0 * found.correct)
    parts = parts.explode("subset").dropna(subset="subset")
    groups = parts.groupby(["subset", "method", "seed"], sort=False).accuracy
    rates = groups.mean().reset_index()
    rates = rates.sort_values(
        "subset", key=lambda one: one.map(names.index), kind="stable"
    )
    frame = spread_across(rates, "accuracy", {"subset": "subset"}, "method", methods)
    frame = frame.set_index("subset").reindex(names)
    examples = groups.size().groupby("subset").first().reindex(names, fill_value=0)
    frame.insert(0, "Examples", examples)
    return (
        rates,
        frame.rename_axis("subset").reset_index(),
        results.note(found, methods),
    )
