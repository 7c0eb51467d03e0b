"""Sections on regexes at the end of runs: how they err, who corrects it, and which are hard."""

from collections.abc import Iterator, Sequence

import pandas as pd

from erjepa.analysis.regex_errors import (
    CORRECT,
    ERROR_CATEGORIES,
    is_right_beginning,
    prediction_category,
)
from erjepa.analysis.regex_tokens import (
    LENGTH_GROUPS,
    STRUCTURES,
    length_group,
)
from erjepa.analysis.regex_tokens import (
    structures as structures_of,
)
from erjepa.report.figures import (
    COLUMN,
    Figure,
    canvas,
    draw_bars,
    draw_curves,
    draw_grid,
    legend_above,
    looks,
)
from erjepa.report.results import Results
from erjepa.report.sections import section
from erjepa.report.table import SD, Table, spread

_BEGINNING, _IF_STOPPED = "right beginning", "right if it had stopped"
# Names that fit under a column of a figure.
_SHORT = {
    "over-generation": "over",
    "under-generation": "under",
    "same-length mismatch": "same\nlength",
    "syntax error": "syntax\nerror",
}


def categories(
    results: Results, dataset: str, methods: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Predictions at the ends of runs with their ``category``, and a column a method of it.

    The second has a row for each seed and example, in order.
    """
    found = results.final_predictions(dataset, methods)
    pairs = zip(found.target, found.output, strict=True)
    found["category"] = [prediction_category(*pair) for pair in pairs]
    wide = found.pivot(index=["seed", "id"], columns="method", values="category")
    order = found[["seed", "id"]].drop_duplicates()
    return found, wide.reindex(pd.MultiIndex.from_frame(order))


@section("Corrected errors", task="nl_rx")
def corrections(
    results: Results,
    dataset: str,
    baseline: str | None = None,
    methods: Sequence[str] | None = None,
) -> Iterator[Table]:
    """Errors of a baseline that other methods have right."""
    baseline = results.first("SFT", baseline)
    methods = methods or [results.first(role) for role in ("LLM-JEPA", "ER-JEPA")]
    found, wide = categories(results, dataset, [baseline, *methods])
    seeds = list(found.seed.unique())
    cells = pd.MultiIndex.from_product(
        [ERROR_CATEGORIES, seeds], names=["category", "seed"]
    )
    groups = [wide[baseline].rename("category"), wide.index.get_level_values("seed")]
    errors = wide.groupby(groups).size().reindex(cells, fill_value=0)
    error = f"{baseline} error"
    by_seed = pd.DataFrame(index=cells).assign(Errors=errors)
    parts = []
    for method in methods:
        right = (
            wide[method].eq(CORRECT).groupby(groups).sum().reindex(cells, fill_value=0)
        )
        rate = 100 * right / errors.where(errors > 0)
        by_seed[f"{method} corrected"], by_seed[f"{method} rate (%)"] = right, rate
        one = pd.DataFrame({"errors": errors, "corrected": right, "rate": rate})
        parts.append(one.reset_index().assign(method=method))
    columns = {"errors": "Errors", "corrected": "Corrected", "rate": "Rate (%)"}
    by = {"category": error, "method": "Method"}
    summary = spread(pd.concat(parts), columns, by).sort_values(
        error, kind="stable", key=lambda names: names.map(ERROR_CATEGORIES.index)
    )
    shown = [error, "Errors", f"Errors{SD}", "Method", "Corrected", f"Corrected{SD}"]
    note = results.note_of({"all of these methods": len(seeds)})
    yield Table(
        f"corrections_{dataset}",
        f"Errors of {baseline} on {dataset} that are predicted exactly by other methods, on "
        "the same inputs and seed. Rates are taken within each seed before averaging. "
        f"Outputs that are no regex are apart from the categories by length. {note}",
        summary[[*shown, "Rate (%)", f"Rate (%){SD}"]],
        digits={"Errors": 1, "Corrected": 1},
    )
    by_seed = by_seed.reset_index().rename(columns={"category": error, "seed": "Seed"})
    yield Table(
        f"corrections_by_seed_{dataset}",
        f"Corrected errors of {baseline} on {dataset} by seed.",
        by_seed.astype({"Seed": str}),
    )


@section("Where answers end", task="nl_rx")
def stops(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Where answers end: right ones, right beginnings that run on, and kinds of errors."""
    found, _ = categories(results, dataset, results.named(methods))
    shares = pd.get_dummies(found.category).reindex(
        columns=[CORRECT, *ERROR_CATEGORIES], fill_value=False
    )
    pairs = zip(found.target, found.output, strict=True)
    shares.insert(1, _BEGINNING, [is_right_beginning(*pair) for pair in pairs])
    shares.insert(2, _IF_STOPPED, shares[CORRECT] | shares[_BEGINNING])
    by_seed = (100.0 * shares).groupby([found.method, found.seed], sort=False).mean()
    note = results.note_of({"all of these methods": found.seed.nunique()})
    yield Table(
        f"stops_{dataset}",
        f"Predictions on {dataset} in percent of all: {_BEGINNING}: the output starts with the "
        f"whole target and runs on; {_IF_STOPPED}: these and the correct ones. Right "
        f"beginnings are counted among the errors as well. {note}",
        spread(by_seed.reset_index(), {n: n for n in shares}, {"method": "Method"}),
    )


@section("Outcomes of errors", task="nl_rx")
def outcomes(
    results: Results,
    dataset: str,
    errors_of: str | None = None,
    outcomes_of: str | None = None,
) -> Iterator[Table | Figure]:
    """What one method predicts where another errs."""
    first = results.first("LLM-JEPA", errors_of)
    second = results.first("ER-JEPA", outcomes_of)
    found, wide = categories(results, dataset, [first, second])
    names = [CORRECT, *ERROR_CATEGORIES]
    counts = pd.crosstab(wide[first], wide[second])
    counts = counts.reindex(index=ERROR_CATEGORIES, columns=names, fill_value=0)
    totals = counts.sum(axis=1)
    shares = 100 * counts.div(totals.where(totals > 0), axis=0)
    rows = [
        f"{one.replace(' mismatch', '')}\nn = {totals[one]}" for one in counts.index
    ]
    picture, (axes,) = canvas(COLUMN, 2.1)
    drawn = shares.set_axis(rows).rename(columns=_SHORT)
    texts = drawn.map(lambda share: "" if pd.isna(share) else f"{share:.1f}")
    draw_grid(axes, drawn, texts)
    axes.set(xlabel=f"{second} prediction", ylabel=f"{first} error")
    caption = (
        f"Predictions of {second} on {dataset} where {first} errs, on the same input and "
        f"seed, as percentages of the errors n in a row, pooled over seeds. "
        f"{results.note_of({'both methods': found.seed.nunique()})}"
    )
    yield Figure(f"outcomes_{dataset}", caption, picture)
    frame = shares.add_suffix(" (%)")
    frame.insert(0, "n", totals)
    frame = frame.rename_axis(f"{first} error").reset_index()
    digits = dict.fromkeys(frame.columns[2:], 1)
    yield Table(f"outcomes_{dataset}", caption, frame, digits)


@section("Structure of the target", task="nl_rx")
def structures(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy by what the target regex contains."""
    chosen = results.main_methods(methods)
    rates, frame, note = _subsets(results, dataset, chosen, STRUCTURES, structures_of)
    picture, (axes,) = canvas(COLUMN, 2.6)
    styles = {m: look for m, look in looks(results.methods).items() if m in chosen}
    draw_bars(axes, rates, "subset", "accuracy", styles)
    axes.tick_params("x", rotation=30)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    axes.set_ylabel("accuracy (%)")
    legend_above(picture, axes, 3)
    caption = (
        f"Accuracy on {dataset} by structure of the target; subsets overlap. {note}"
    )
    yield Figure(f"structures_{dataset}", caption, picture)
    frame = frame.rename(columns={"subset": "Structure"})
    yield Table(f"structures_{dataset}", f"{caption} Accuracy in percent.", frame)


@section("Length of the target", task="nl_rx")
def lengths(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy by the length of the target regex."""
    rates, frame, note = _subsets(
        *(results, dataset, results.main_methods(methods), LENGTH_GROUPS),
        lambda target: [length_group(target)],
    )
    picture, (axes,) = canvas(COLUMN, 2.4)
    placed = rates.assign(place=rates.subset.map(LENGTH_GROUPS.index))
    draw_curves(axes, placed, "place", "accuracy", looks(results.methods))
    axes.set_xticks(range(len(LENGTH_GROUPS)), LENGTH_GROUPS)
    axes.set(xlabel="length of the target (regex tokens)", ylabel="accuracy (%)")
    legend_above(picture, axes, 3)
    caption = f"Accuracy on {dataset} by regex tokens of the target. {note}"
    yield Figure(
        f"lengths_{dataset}",
        f"{caption} Bands are one sample standard deviation.",
        picture,
    )
    frame = frame.rename(columns={"subset": "Regex tokens"})
    yield Table(f"lengths_{dataset}", f"{caption} Accuracy in percent.", frame)


def _subsets(results, dataset, methods, names, subsets_of):
    """Accuracy of each seed on each subset of targets, its table, and the note on seeds."""
    found = results.final_predictions(dataset, methods)
    parts = (
        found.assign(
            subset=[list(subsets_of(target)) for target in found.target],
            accuracy=100.0 * found.correct,
        )
        .explode("subset")
        .dropna(subset="subset")
    )
    parts["subset"] = pd.Categorical(parts.subset, names, ordered=True)
    groups = parts.groupby(
        ["subset", "method", "seed"], sort=False, observed=True
    ).accuracy
    rates = groups.mean().reset_index().sort_values("subset", kind="stable")
    one_run = parts[(parts.method == methods[0]) & (parts.seed == parts.seed.iloc[0])]
    frame = pd.DataFrame({"subset": list(names)})
    frame["Examples"] = (
        frame.subset.map(one_run.subset.value_counts()).fillna(0).astype(int)
    )
    cells = rates.groupby(["method", "subset"], observed=True).accuracy.agg(
        ["mean", "std"]
    )
    for method in methods:
        frame[method] = frame.subset.map(cells.loc[method]["mean"])
        frame[method + SD] = frame.subset.map(cells.loc[method]["std"])
    rates["subset"] = rates.subset.astype(str)
    note = results.note_of({"all of these methods": found.seed.nunique()})
    return rates, frame, note
