"""Sections on predicted regexes at the end of runs: errors, their correction, hard targets."""

from collections.abc import Callable, Sequence

import pandas as pd

from erjepa.studies.report.figures import (
    Figure,
    canvas,
    draw_bars,
    draw_curves,
    draw_grid,
)
from erjepa.studies.report.results import Results, pivot
from erjepa.studies.report.sections import Method, Parts, section
from erjepa.studies.report.table import Table, spread
from erjepa.tasks.nl_rx import regex_kinds as regexes
from erjepa.tasks.nl_rx.regex_kinds import CORRECT, ERROR_CATEGORIES

_BEGINNING, _IF_STOPPED = "right beginning", "right if it had stopped"
# Short names for the columns of a figure.
_SHORT = {"over-generation": "over", "under-generation": "under"}
_SHORT |= {"same-length mismatch": "same\nlength", "syntax error": "syntax\nerror"}


def categories(results: Results, dataset: str, methods: Sequence[str]) -> pd.DataFrame:
    """Return the predictions at the ends of runs, each with its ``category``."""
    answers = results.final_predictions(dataset, methods)
    pairs = map(regexes.prediction_category, answers.target, answers.output)
    return answers.assign(category=list(pairs))


@section("Corrected errors", task="nl_rx", main=True, by_default=True)
def corrections(
    results: Results, dataset: str, methods: list[str], baseline: Method | None = None
) -> Parts:
    """Errors of a baseline, by default SFT, that other methods correct."""
    baseline = results.first("SFT", baseline)
    others = [method for method in methods if method != baseline]
    answers = categories(results, dataset, [baseline, *others])
    wide = pivot(answers, ["seed", "id"], "method", "category")
    error = wide[baseline].rename(f"{baseline} error")
    right = wide[others].eq(CORRECT).set_index(error, append=True).stack()
    cells = [ERROR_CATEGORIES, answers.seed.unique(), others]
    cells = pd.MultiIndex.from_product(cells, names=[error.name, "seed", "method"])
    counts = right.groupby(cells.names).agg(["size", "sum"])
    counts = counts.reindex(cells, fill_value=0).reset_index()
    columns = {"Errors": counts["size"], "Corrected": counts["sum"]}
    columns["Rate (%)"] = 100 * counts["sum"] / counts["size"]
    summary = spread(columns, {error.name: counts[error.name], "Method": counts.method})
    summary.insert(3, "Method", summary.pop("Method"))
    yield Table(
        f"Errors of {baseline} on {dataset} that other methods answer correctly, with the same "
        "input and seed. Rates are computed per seed, then averaged. Answers that are not a "
        "regex have a category of their own. "
        f"{results.note(answers, [baseline, *others])}",
        summary,
        digits={"Errors": 1, "Corrected": 1},
    )
    by_seed = counts[[error.name, "seed", "size"]].drop_duplicates()
    by_seed.columns = pd.Index([error.name, "Seed", "Errors"])
    for method, of_method in pd.DataFrame(columns).groupby(counts.method, sort=False):
        by_seed[f"{method} corrected"] = of_method["Corrected"].array
        by_seed[f"{method} rate (%)"] = of_method["Rate (%)"].array
    caption = f"Corrected errors of {baseline} on {dataset} by seed."
    yield Table(caption, by_seed.astype({"Seed": str}), name="by_seed")


@section("Where answers end", task="nl_rx", by_default=True)
def stops(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Fractions of correct answers, of right beginnings that run on, and of kinds of errors."""
    answers = categories(results, dataset, methods)
    shares = pd.get_dummies(answers.category).reindex(
        columns=[CORRECT, *ERROR_CATEGORIES], fill_value=False
    )
    starts_right = map(regexes.is_right_beginning, answers.target, answers.output)
    shares.insert(1, _BEGINNING, list(starts_right))
    shares.insert(2, _IF_STOPPED, shares[CORRECT] | shares[_BEGINNING])
    groups = [answers.method, answers.seed]
    by_seed = (100.0 * shares).groupby(groups, sort=False).mean()
    yield Table(
        f"Kinds of answers on {dataset}, in percent of all. {_BEGINNING.capitalize()}: the "
        f"answer starts with the whole target and continues; it also counts as an error. "
        f"{_IF_STOPPED.capitalize()}: those and correct answers. {results.note(answers, methods)}",
        spread(by_seed, {"Method": "method"}),
    )


@section("Outcomes of errors", task="nl_rx", main=True, by_default=True)
def outcomes(
    results: Results,
    dataset: str,
    methods: list[str],
    errors_of: Method | None = None,
    outcomes_of: Method | None = None,
) -> Parts:
    """Predictions of one method, by default ER-JEPA, on the errors of another, LLM-JEPA."""
    first = results.first("LLM-JEPA", errors_of)
    second = results.first("ER-JEPA", outcomes_of)
    answers = categories(results, dataset, [first, second])
    wide = pivot(answers, ["seed", "id"], "method", "category")
    counts = pd.crosstab(wide[first], wide[second]).reindex(
        index=ERROR_CATEGORIES, columns=[CORRECT, *ERROR_CATEGORIES], fill_value=0
    )
    totals = counts.sum(axis=1)
    shares = 100 * counts.div(totals, axis=0)
    rows = [f"{x.replace(' mismatch', '')}\nn = {totals[x]}" for x in counts.index]
    picture, (axes,) = canvas()
    draw_grid(axes, shares.set_axis(rows).rename(columns=_SHORT), digits=1)
    axes.set(xlabel=f"{second} prediction", ylabel=f"{first} error")
    caption = (
        f"Answers of {second} on {dataset} to the inputs that {first} gets wrong with the same "
        f"seed, in percent of the n errors of each kind, pooled over seeds. "
        f"{results.note(answers, [first, second])}"
    )
    yield Figure(caption, picture, 2.1)
    frame = shares.add_suffix(" (%)")
    digits = dict.fromkeys(frame, 1)
    frame.insert(0, "n", totals)
    yield Table(caption, frame.rename_axis(f"{first} error").reset_index(), digits)


@section("Structure of the target", task="nl_rx", main=True, by_default=True)
def structures(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy by the operators that the target regex contains."""
    kind = "Structure", regexes.STRUCTURES, regexes.structures
    rates, frame, note = _by_target(results, dataset, methods, *kind)
    picture, (axes,) = canvas()
    draw_bars(axes, rates, "accuracy", "Structure", results.methods)
    caption = (
        f"Accuracy on {dataset} by structure of the target; subsets overlap. {note}"
    )
    yield Figure(caption, picture, 3.2)
    yield Table(f"{caption} Accuracy in percent.", frame)


@section("Length of the target", task="nl_rx", main=True, by_default=True)
def lengths(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy by the length of the target regex."""
    kind = "Regex tokens", regexes.LENGTH_GROUPS, regexes.length_group
    rates, frame, note = _by_target(results, dataset, methods, *kind)
    picture, (axes,) = canvas()
    draw_curves(axes, rates, "Regex tokens", "accuracy", results.methods)
    axes.set_xlabel("length of the target (regex tokens)")
    caption = f"Accuracy on {dataset} by regex tokens of the target. {note}"
    bands = results.if_seeds(" Bands are one sample standard deviation.")
    yield Figure(f"{caption}{bands}", picture)
    yield Table(f"{caption} Accuracy in percent.", frame)


def _by_target(
    results: Results,
    dataset: str,
    methods: list[str],
    kind: str,
    names: Sequence[str],
    kinds_of: Callable[[str], str | set[str]],
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Return the accuracy of each seed on each kind of target, its table, and a note on seeds."""
    answers = results.final_predictions(dataset, methods)
    parts = answers.assign(accuracy=100.0 * answers.correct)
    parts[kind] = parts.target.map(kinds_of)  # a name or a set of names
    groups = parts.explode(kind).groupby([kind, "method", "seed"]).accuracy
    cells = [names, methods, answers.seed.unique()]
    index = pd.MultiIndex.from_product(cells, names=[kind, "method", "seed"])
    rates = groups.mean().reindex(index).reset_index()
    columns = {name: rates.accuracy.where(rates.method == name) for name in methods}
    frame = spread(columns, {kind: rates[kind]})
    counts = groups.size().groupby(kind).first().reindex(names, fill_value=0)
    frame.insert(1, "Examples", counts.array)
    return rates.dropna(), frame, results.note(answers, methods)
