"""Sections on accuracy at the end of runs: by method, metric and setting."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from erjepa.studies.report.figures import Figure, canvas, draw_bars, draw_grid
from erjepa.studies.report.results import DOTS, MEAN, Results, Unavailable
from erjepa.studies.report.sections import Dataset, Parts, section
from erjepa.studies.report.table import SD, Table, spread

_GRID = ["loss.jepa_weight", "num_predictor_tokens"]


@section("Accuracy", by_default=True)
def accuracy(
    results: Results,
    methods: list[str],
    datasets: list[Dataset] | None = None,
    remark: str = "",
) -> Parts:
    """Accuracy of methods on every dataset; for a single dataset also minimum and maximum."""
    ends = results.final(None, methods)
    if datasets is not None:
        ends = ends[ends.dataset.isin(datasets)]
        if ends.empty:
            raise Unavailable(f"nothing is scored on {', '.join(datasets)} yet")
    names, by = list(ends.dataset.unique()), {"Method": ends.method}
    picture, (axes,) = canvas()
    if len(names) > 1:
        where, best, height = "", names, 2.4
        draw_bars(axes, ends, "dataset", "accuracy", results.methods)
        by_dataset = {name: ends.accuracy.where(ends.dataset == name) for name in names}
        frame = spread(by_dataset, by)
    else:
        where, best = f" on {names[0]}", ["Accuracy (%)", "Min", "Max"]
        height = 0.55 + 0.25 * ends.method.nunique()
        draw_bars(axes, ends, "accuracy", "method", results.methods)
        frame = spread({"Accuracy (%)": ends.accuracy}, by)
        values = ends.groupby("method", sort=False).accuracy
        frame[["Min", "Max", "Seeds"]] = values.agg(["min", "max", "size"]).to_numpy()
        frame = frame.astype({"Seeds": int})
    start = f"Accuracy{where} at the end of runs"
    end = f"{results.note(ends, methods)} {remark}".rstrip()
    yield Figure(f"{start}{results.if_seeds(DOTS)}. {end}", picture, height)
    caption = f"{start}, in percent{results.if_seeds(MEAN)}. {end}"
    yield Table(caption, frame, best=best)


@section("Metrics of the answers", by_default=True)
def readings(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Every metric of the task, including the accuracy."""
    ends = results.final(dataset, methods)
    values = 100 * pd.DataFrame(ends.readings.tolist(), index=ends.index)
    yield Table(
        f"Right answers (%) on {dataset} by each metric; {ends.primary.iloc[0]} is "
        f"the accuracy. {results.note(ends, methods)}",
        spread(values, {"Method": ends.method}),
        best=list(values),
    )


@section("JEPA weight and predictor tokens", by_default=True)
def lambda_k(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Accuracy by weight of the JEPA loss and number of predictor tokens."""
    keys = pd.DataFrame([results.overrides(m) for m in methods], methods, dtype=object)
    is_er_jepa = [results.role(method) == "ER-JEPA" for method in methods]
    grid = keys.reindex(columns=_GRID)[is_er_jepa].dropna()
    if len(grid) < 2:
        raise Unavailable(f"no two methods set both {' and '.join(_GRID)}")
    if grid.duplicated().any():
        raise Unavailable(
            f"two methods set {' and '.join(_GRID)} alike; name `methods`"
        )
    ends = results.final(dataset, list(grid.index))
    ends = ends.join(grid, on="method").sort_values(_GRID)
    weight, tokens = ends[_GRID[0]].map("{:g}".format), "k = " + ends[_GRID[1]].map(str)
    cells = {name: ends.accuracy.where(tokens == name) for name in tokens.unique()}
    frame = spread(cells, {"λ": weight})
    means = frame.set_index("λ").filter(regex=f"(?<!{SD})$")
    picture, (axes,) = canvas()
    draw_grid(axes, means, digits=2)
    axes.set(xlabel="predictor tokens k", ylabel="weight λ")
    for text in axes.texts:
        if text.get_text() == f"{means.max(axis=None):.2f}":
            text.set_fontweight("bold")
    caption = (
        f"Accuracy (%) on {dataset} by weight λ of the JEPA loss and number k of predictor "
        f"tokens. {results.note(ends, list(grid.index))}"
    )
    yield Figure(caption, picture, 0.6 + 0.3 * len(means))
    yield Table(caption, frame)


@section("Chosen settings")
def chosen(results: Results, dataset: str, methods: list[str]) -> Parts:
    """The setting of each method with the best mean on validation pairs, and all trials.

    The trials of a method share its name up to a comma: ``SFT, lr 1e-5`` and ``SFT, lr 2e-5``.
    """
    ends = results.final(dataset, methods)
    if tested := list(ends.method[ends.split != "validation"].unique()):
        raise Unavailable(
            f"{', '.join(tested)}: scored on the test pairs, which nothing may be chosen by "
            "(score_on: validation)"
        )
    complete = ends[ends.groupby("method").seed.transform("size") == len(results.seeds)]
    if complete.empty:
        raise Unavailable(f"no setting has all its seeds scored on {dataset}")
    value, note = "Validation accuracy (%)", results.note(ends, methods)
    trials = spread({value: complete.accuracy}, {"Setting": complete.method})
    seeds = complete.groupby("method", sort=False).accuracy
    trials[["Min", "Max"]] = seeds.agg(["min", "max"]).to_numpy()
    trials.insert(0, "Method", trials.Setting.str.partition(",")[0])
    best = trials.loc[trials.groupby("Method", sort=False)[value].idxmax()]
    trials["Chosen"] = ["yes" if i in best.index else "" for i in trials.index]
    yield Table(
        f"Best setting of each method by mean accuracy on validation pairs of {dataset}, "
        f"which are held out from training. Test pairs are not used. {note}",
        best[["Method", "Setting", value, value + SD]].assign(
            Trials=best.Method.map(trials.Method.value_counts()),
            Overrides=[settings(results.own(method)) for method in best.Setting],
        ),
    )
    caption = f"All settings on validation pairs of {dataset}. {note}"
    yield Table(caption, trials, name="trials")


def settings(values: Mapping[str, Any]) -> str:
    """Return overrides as they are typed on the command line."""
    return " ".join(f"{key}={value}" for key, value in values.items())
