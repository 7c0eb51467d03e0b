"""Sections on accuracy at the end of runs: bars, readings, grids of two keys, choices."""

from collections.abc import Iterator, Sequence

import pandas as pd

from erjepa.report.figures import (
    COLUMN,
    Figure,
    canvas,
    draw_bars,
    draw_grid,
    draw_rows,
    legend_above,
    looks,
)
from erjepa.report.page import settings
from erjepa.report.results import ROLES, Results, Unavailable
from erjepa.report.sections import section
from erjepa.report.table import SD, Table, spread

_WEIGHT, _TOKENS = "loss.jepa_weight", "num_predictor_tokens"
_MEAN = "means, one sample standard deviation, and single seeds as dots"


@section("Accuracy", whole=True)
def accuracy(
    results: Results,
    methods: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    remark: str = "",
) -> Iterator[Table | Figure]:
    """Accuracy of methods on every dataset; of a single one also least and greatest."""
    chosen, names = results.named(methods), ends_of(results, methods, datasets)
    ends = pd.concat(names.values())
    counts = {
        f"{method} on {name}" if len(names) > 1 else method: (
            rows.method == method
        ).sum()
        for name, rows in names.items()
        for method in chosen
    }
    note = f"{results.note_of(counts)} {remark}".rstrip()
    styles = {m: look for m, look in looks(results.methods).items() if m in chosen}
    title = "Accuracy" if len(names) > 1 else f"Accuracy on {next(iter(names))}"
    if len(names) > 1:
        picture, (axes,) = canvas(COLUMN, 2.4)
        draw_bars(axes, ends, "dataset", "accuracy", styles)
        axes.set_ylabel("accuracy (%)")
        legend_above(picture, axes, 3)
        means = ends.groupby(["method", "dataset"], sort=False).accuracy.agg(
            ["mean", "std"]
        )
        frame = pd.DataFrame(index=pd.Index(chosen, name="Method"))
        for name in names:
            of_dataset = means.xs(name, level="dataset")
            frame[name], frame[name + SD] = of_dataset["mean"], of_dataset["std"]
        frame, best = frame.reset_index(), list(names)
    else:
        picture, (axes,) = canvas(COLUMN, 0.55 + 0.3 * ends.method.nunique())
        draw_rows(axes, ends, "accuracy", styles)
        axes.set_xlabel("accuracy (%)")
        frame = spread(ends, {"accuracy": "Accuracy (%)"}, {"method": "Method"})
        more = ends.groupby("method", sort=False).accuracy.agg(["min", "max", "size"])
        frame[["Min", "Max", "Seeds"]] = more.astype(object).to_numpy()
        best = ["Accuracy (%)", "Min", "Max"]
    name = "_".join(["accuracy", *names]) if len(names) == 1 else "accuracy"
    yield Figure(name, f"{title} at the end of runs: {_MEAN}. {note}", picture)
    yield Table(
        name,
        f"{title} at the end of runs, in percent: mean ± one sample standard deviation. {note}",
        frame,
        best=best,
    )


def ends_of(
    results: Results,
    methods: Sequence[str] | None,
    datasets: Sequence[str] | None = None,
) -> dict[str, pd.DataFrame]:
    """Dataset to the ends of runs, of datasets that have any; Unavailable if none has."""
    found, chosen = {}, results.named(methods)
    for name in datasets or results.scored_datasets():
        rows = results.of(name, chosen)
        if rows.ends.any():
            found[name] = results.final(name, chosen)
    if not found:
        raise Unavailable("no run of these methods has reached its end")
    return found


@section("Readings of the answers")
def readings(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Every reading of the answers, not the accuracy alone."""
    chosen = results.named(methods)
    ends = results.final(dataset, chosen)
    shares = 100 * pd.DataFrame(ends.readings.tolist(), index=ends.index)
    kinds = {name: name for name in shares}
    yield Table(
        f"readings_{dataset}",
        f"Share of right answers (%) on {dataset} by each reading; {ends.primary.iloc[0]} is "
        f"the accuracy. {results.note(ends, chosen)}",
        spread(shares.assign(method=ends.method), kinds, {"method": "Method"}),
        best=list(kinds),
    )


@section("JEPA weight and predictor tokens")
def lambda_k(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table | Figure]:
    """Accuracy by weight of the JEPA loss and number of predictor tokens."""
    set_to = {method: results.overrides(method) for method in results.named(methods)}
    grid = {
        method: (keys[_WEIGHT], keys[_TOKENS])
        for method, keys in set_to.items()
        if _WEIGHT in keys and _TOKENS in keys and results.role(method) == "ER-JEPA"
    }
    if len(grid) < 2:
        raise Unavailable(f"no two methods set both {_WEIGHT} and {_TOKENS}")
    if len(set(grid.values())) < len(grid):
        raise Unavailable(
            f"two methods set {_WEIGHT} and {_TOKENS} alike; name `methods`"
        )
    ends = results.final(dataset, list(grid))
    ends["λ"], ends["k"] = zip(*ends.method.map(grid), strict=True)
    cells = ends.groupby(["λ", "k"]).accuracy.agg(["mean", "std"])
    means, sds = cells["mean"].unstack(), cells["std"].unstack()
    texts = means.map(lambda mean: "—" if pd.isna(mean) else f"{mean:.2f}")
    picture, (axes,) = canvas(COLUMN, 0.6 + 0.3 * len(means))
    draw_grid(axes, means, texts, bold=means.max(axis=None))
    axes.set(xlabel="predictor tokens k", ylabel="weight λ")
    counts = ends.groupby("method").size()
    note = results.note_of(
        {f"λ = {w}, k = {k}": counts.get(m, 0) for m, (w, k) in grid.items()}
    )
    caption = (
        f"Accuracy (%) on {dataset} by weight λ of the JEPA loss and number k of predictor "
        f"tokens. {note}"
    )
    yield Figure(f"lambda_k_{dataset}", caption, picture)
    frame = pd.DataFrame({"λ": [f"{weight:g}" for weight in means.index]})
    for k in means:
        name = f"k = {k}"
        frame[name], frame[name + SD] = means[k].to_numpy(), sds[k].to_numpy()
    yield Table(f"lambda_k_{dataset}", caption, frame)


@section("Chosen settings", by_default=False)
def chosen(
    results: Results, dataset: str, methods: Sequence[str] | None = None
) -> Iterator[Table]:
    """Of each role the setting with the best mean on validation pairs, and all its trials."""
    names = results.named(methods)
    ends = results.final(dataset, names)
    if tested := list(ends.method[ends.split != "validation"].unique()):
        raise Unavailable(
            f"{', '.join(tested)}: scored on the test pairs, which nothing may be chosen by "
            "(score_on: validation)"
        )
    whole = ends[ends.groupby("method").seed.transform("size") == len(results.seeds)]
    if whole.empty:
        raise Unavailable(f"no setting has all its seeds scored on {dataset}")
    value, note = "Validation accuracy (%)", results.note(ends, names)
    trials = spread(whole, {"accuracy": value}, {"method": "Setting"})
    extremes = whole.groupby("method", sort=False).accuracy
    trials["Min"], trials["Max"] = extremes.min().to_numpy(), extremes.max().to_numpy()
    trials.insert(0, "Method", trials.Setting.map(results.role))
    trials = (
        trials.set_index("Method")
        .loc[[r for r in ROLES if r in set(trials.Method)]]
        .reset_index()
    )
    best = trials.loc[trials.groupby("Method", sort=False)[value].idxmax()]
    trials["Chosen"] = ["yes" if i in best.index else "" for i in trials.index]
    summary = best[["Method", "Setting", value, value + SD]].assign(
        Trials=[int((trials.Method == role).sum()) for role in best.Method],
        Overrides=[settings(results.own(method)) for method in best.Setting],
    )
    yield Table(
        f"chosen_{dataset}",
        f"The setting of each method with the best mean accuracy on validation pairs of "
        f"{dataset}, which are held out of the training pairs; test pairs take no part. {note}",
        summary,
    )
    caption = f"Every setting on validation pairs of {dataset}. {note}"
    yield Table(f"trials_{dataset}", caption, trials)
