"""Sections on accuracy at the end of runs: bars, readings, grids of two keys, choices."""

from collections.abc import Sequence

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
from erjepa.report.sections import Parts, section
from erjepa.report.table import SD, Table, spread

_WEIGHT, _TOKENS = "loss.jepa_weight", "num_predictor_tokens"
_METHOD = {"method": "Method"}


@section("Accuracy", whole=True)
def accuracy(
    results: Results,
    methods: list[str],
    datasets: Sequence[str] | None = None,
    remark: str = "",
) -> Parts:
    """Accuracy of methods on every dataset; of a single one also least and greatest."""
    ends, note = ends_of(results, methods, datasets)
    names = list(ends.dataset.unique())
    styles = {
        name: look for name, look in looks(results.methods).items() if name in methods
    }
    if len(names) > 1:
        where, best = "", names
        picture, (axes,) = canvas(COLUMN, 2.4)
        draw_bars(axes, ends, "dataset", "accuracy", styles)
        axes.set_ylabel("accuracy (%)")
        legend_above(picture, axes, 3)
        frame = pd.DataFrame(index=pd.Index(methods, name="Method"))
        for name in names:
            of_dataset = ends[ends.dataset == name].groupby("method").accuracy
            frame[name], frame[name + SD] = of_dataset.mean(), of_dataset.std()
        frame = frame.reset_index()
    else:
        where, best = f" on {names[0]}", ["Accuracy (%)", "Min", "Max"]
        picture, (axes,) = canvas(COLUMN, 0.55 + 0.3 * ends.method.nunique())
        draw_rows(axes, ends, "accuracy", styles)
        axes.set_xlabel("accuracy (%)")
        frame = spread(ends, {"accuracy": "Accuracy (%)"}, _METHOD)
        more = ends.groupby("method", sort=False).accuracy.agg(["min", "max", "size"])
        frame[["Min", "Max", "Seeds"]] = more.astype(object).to_numpy()
    start, end = f"Accuracy{where} at the end of runs", f"{note} {remark}".rstrip()
    dots = "means, one sample standard deviation, and single seeds as dots"
    yield Figure(f"{start}: {dots}. {end}", picture)
    cells = "in percent, mean ± one sample standard deviation"
    yield Table(f"{start}, {cells}. {end}", frame, best=best)


def ends_of(
    results: Results, methods: Sequence[str], datasets: Sequence[str] | None = None
) -> tuple[pd.DataFrame, str]:
    """Ends of runs of all datasets that have any, and a sentence on their seeds."""
    found = []
    for name in datasets or results.scored_datasets():
        if results.of(name, methods).ends.any():
            found.append(results.final(name, methods))
    if not found:
        raise Unavailable("no run of these methods has reached its end")
    ends = pd.concat(found)
    if len(found) == 1:
        return ends, results.note(ends, methods)
    names = [f"{m} on {d}" for d in ends.dataset.unique() for m in methods]
    return ends, results.note(
        ends.assign(method=ends.method + " on " + ends.dataset), names
    )


@section("Readings of the answers")
def readings(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Every reading of the answers, not the accuracy alone."""
    ends = results.final(dataset, methods)
    shares = 100 * pd.DataFrame(ends.readings.tolist(), index=ends.index)
    kinds = {name: name for name in shares}
    yield Table(
        f"Share of right answers (%) on {dataset} by each reading; {ends.primary.iloc[0]} is "
        f"the accuracy. {results.note(ends, methods)}",
        spread(shares.assign(method=ends.method), kinds, _METHOD),
        best=list(kinds),
    )


@section("JEPA weight and predictor tokens")
def lambda_k(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy by weight of the JEPA loss and number of predictor tokens."""
    grid = {}
    for method in methods:
        keys = results.overrides(method)
        if _WEIGHT in keys and _TOKENS in keys and results.role(method) == "ER-JEPA":
            grid[method] = keys[_WEIGHT], keys[_TOKENS]
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
    draw_grid(axes, means.rename("{:g}".format), texts, bold=means.max(axis=None))
    axes.set(xlabel="predictor tokens k", ylabel="weight λ")
    caption = (
        f"Accuracy (%) on {dataset} by weight λ of the JEPA loss and number k of predictor "
        f"tokens. {results.note(ends, list(grid))}"
    )
    yield Figure(caption, picture)
    frame = pd.DataFrame({"λ": [f"{weight:g}" for weight in means.index]})
    for k in means:
        frame[f"k = {k}"], frame[f"k = {k}{SD}"] = (
            means[k].to_numpy(),
            sds[k].to_numpy(),
        )
    yield Table(caption, frame)


@section("Chosen settings", by_default=False)
def chosen(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Of each role the setting with the best mean on validation pairs, and all its trials."""
    ends = results.final(dataset, methods)
    if tested := list(ends.method[ends.split != "validation"].unique()):
        raise Unavailable(
            f"{', '.join(tested)}: scored on the test pairs, which nothing may be chosen by "
            "(score_on: validation)"
        )
    whole = ends[ends.groupby("method").seed.transform("size") == len(results.seeds)]
    if whole.empty:
        raise Unavailable(f"no setting has all its seeds scored on {dataset}")
    value, note = "Validation accuracy (%)", results.note(ends, methods)
    trials = spread(whole, {"accuracy": value}, {"method": "Setting"})
    seeds = whole.groupby("method", sort=False).accuracy
    trials["Min"], trials["Max"] = seeds.min().to_numpy(), seeds.max().to_numpy()
    trials.insert(0, "Method", trials.Setting.map(results.role))
    trials = trials.dropna(subset="Method").sort_values(
        "Method", kind="stable", key=lambda roles: roles.map(ROLES.index)
    )
    best = trials.loc[trials.groupby("Method", sort=False)[value].idxmax()]
    trials["Chosen"] = ["yes" if i in best.index else "" for i in trials.index]
    yield Table(
        f"The setting of each method with the best mean accuracy on validation pairs of "
        f"{dataset}, which are held out of the training pairs; test pairs take no part. {note}",
        best[["Method", "Setting", value, value + SD]].assign(
            Trials=best.Method.map(trials.Method.value_counts()),
            Overrides=[settings(results.own(method)) for method in best.Setting],
        ),
    )
    yield Table(
        f"Every setting on validation pairs of {dataset}. {note}", trials, name="trials"
    )
