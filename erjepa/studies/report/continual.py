"""The section on sequences of datasets: accuracy after each stage, forgetting and transfer."""

from typing import Any

import numpy as np
import pandas as pd

from erjepa.studies.report.figures import (
    NUM_STYLES,
    PERCENT,
    Canvas,
    Figure,
    canvas,
    draw_bars,
    draw_curves,
)
from erjepa.studies.report.results import MEAN, Results, Unavailable, pivot, select
from erjepa.studies.report.sections import Parts, section
from erjepa.studies.report.table import Table, spread
from erjepa.studies.statistics.forgetting import Continual, continual_measures

_RUN = ["method", "seed"]
_MEASURES = {
    "Forgetting": "forgetting",
    "Backward transfer": "backward_transfer",
    "Forward transfer": "forward_transfer",
}


@section("One dataset after the other")
def continual(
    results: Results,
    methods: list[str],
    share_of_joint: bool = False,
    curves: list[str] | None = None,
) -> Parts:
    """Accuracy on every dataset after each stage of a sequence, forgetting and transfer.

    With ``share_of_joint`` also the average accuracy as a percentage of that of joint training.
    ``curves`` names the methods that have a curve, by default all if they can be told apart.
    """
    if not results.config.continual:
        raise Unavailable("the datasets are no sequence (key `continual`)")
    names, last = results.datasets, results.datasets[-1]
    rows = results.of_stages(None, methods)
    rows = rows.drop_duplicates(["cell", "dataset"], keep="last")
    rows = select(rows, method=methods, stage=names)
    trained_on = {m: results.config.controls(m).trains_on for m in methods}
    controls = {m: on for m, on in trained_on.items() if on in ("all", "nothing")}
    sequences = [method for method in methods if method not in controls]
    if rows[(rows.stage == last) & rows.method.isin(sequences)].empty:
        raise Unavailable("no run has reached the end of the sequence")
    wide = pivot(rows, [*_RUN, "stage"], "dataset", "accuracy").reindex(columns=names)
    ends = wide.xs(last, level="stage")
    note = results.note(ends.reset_index(), methods)
    means = ends.groupby(level="method").mean()
    joints, untrained = (
        [m for m, on in controls.items() if on == what and m in means.index]
        for what in ("all", "nothing")
    )

    drawn = sequences if curves is None else curves
    if curves is not None and len(drawn) > NUM_STYLES:
        raise ValueError(f"report: name at most {NUM_STYLES} methods as `curves`")
    if 0 < len(drawn) <= NUM_STYLES:
        joint = results.nearest(drawn[0], joints) if joints else None
        dotted = f"; dotted: {joint}, on all datasets at once" if joint else ""
        yield Figure(
            "Accuracy on each dataset after each stage of the sequence"
            f"{results.if_seeds(': means and sample standard deviations')}{dotted}. {note}",
            _curves(rows, names, drawn, means.loc[joint] if joint else None),
            columns=min(3, len(names)),
        )

    at_end = rows[rows.stage == last]
    picture, panels = canvas(len(names))
    for name, panel in zip(names, panels, strict=True):
        draw_bars(panel, at_end[at_end.dataset == name], "accuracy", "method", methods)
        panel.set_title(f"on {name}")
    yield Figure(
        "Accuracy on each dataset at the end of the sequence"
        f"{results.if_seeds(': means, sample standard deviations, and single runs')}. {note}",
        picture,
        height=0.5 + 0.22 * at_end.method.nunique(),
        columns=min(2, len(names)),
        name="kept",
    )

    after = rows.stage.mask(~rows.method.isin(sequences), rows.method.map(controls))
    cells = pivot(rows.assign(after=after), [*_RUN, "after"], "dataset", "accuracy")
    yield Table(
        f"Accuracy (%) on each dataset after training on another{results.if_seeds(MEAN)}. {note}",
        spread(cells[names], {"Method": "method", "After": "after"}),
        name="matrix",
    )

    columns = {"Average accuracy (%)": ends.mean(axis=1, skipna=False)}
    by_run = _measures(wide, names, means.loc[untrained[0]] if untrained else None)
    for heading, measure in _MEASURES.items():
        values = {run: getattr(measures, measure) for run, measures in by_run.items()}
        columns[heading] = pd.Series(values, dtype=float).reindex(ends.index)
    kept = ""
    if joints:
        joint = joints[0]
        joint_of = [results.nearest(method, joints) for method, _ in ends.index]
        ceiling = means.loc[joint_of].set_axis(ends.index)
        if share_of_joint:
            average = columns["Average accuracy (%)"]
            columns[f"Average of {joint} (%)"] = 100 * average / ceiling.mean(axis=1)
        for name in names[:-1]:
            columns[f"Kept on {name} (%)"] = 100 * ends[name] / ceiling[name]
        columns[f"Over {joint} on {last}"] = ends[last] - ceiling[last]
        kept = (
            f" Kept: accuracy as a share of the mean accuracy of {joint}, which has the "
            f"compute of all stages. Over {joint}: accuracy minus that mean."
        )
        if len(joints) > 1:
            kept += (
                f" Of {' and '.join(joints)}, a method is compared with the one whose settings "
                "are closest to its own."
            )
    yield Table(
        "Measures after the last dataset. Average accuracy: mean over datasets. Forgetting: "
        "the best accuracy after an earlier dataset minus the last accuracy, in points "
        "(Chaudhry et al. 2018). Backward transfer: the last accuracy of a dataset minus that "
        "after training on it; forward transfer: the accuracy before training on it minus the "
        "untrained model's (Lopez-Paz & Ranzato 2017)."
        f"{kept} {note}",
        spread(columns, {"Method": "method"}),
        name="measures",
    )

    also = results.also_scored(methods)
    if also.empty:
        return
    columns = {}
    for name, of_name in also.groupby("dataset", sort=False):
        of_run = of_name.set_index(_RUN)
        columns[f"Accuracy on {name} (%)"] = of_run.accuracy
        if of_run.target_loss.notna().any():
            columns[f"Perplexity on {name}"] = np.exp(of_run.target_loss.astype(float))
    yield Table(
        "Accuracy, and perplexity of the targets, on datasets that no run trains on, after the "
        f"last dataset. {results.note(also, methods)}",
        spread(columns, {"Method": "method"}),
        name="also_scored",
    )


def _curves(
    rows: pd.DataFrame,
    names: list[str],
    sequences: list[str],
    ceiling: pd.Series | None,
) -> Canvas:
    """Draw a panel per dataset, with the accuracy after each stage and Joint's as a dotted line."""
    picture, panels = canvas(len(names))
    curves = rows[rows.method.isin(sequences)]
    curves = curves.assign(stage=curves.stage.map(names.index) + 1)
    for name, panel in zip(names, panels, strict=True):
        of_dataset = curves[curves.dataset == name]
        how = {"err_style": "bars"}
        draw_curves(panel, of_dataset, "stage", "accuracy", sequences, **how)
        if ceiling is not None:
            panel.axhline(ceiling[name], color="#808080", linewidth=1, linestyle=":")
        panel.set(title=f"on {name}", xlabel="after", ylabel=PERCENT)
        panel.set_xticks(range(1, len(names) + 1), names)
    return picture


def _measures(
    wide: pd.DataFrame, names: list[str], untrained: pd.Series | None
) -> dict[Any, Continual]:
    base = None if untrained is None else untrained.tolist()
    measures = {}
    for run, matrix in wide.groupby(level=_RUN, sort=False):
        accuracy = matrix.droplevel(_RUN).reindex(names).to_numpy()
        if not pd.isna(accuracy).any():
            measures[run] = continual_measures(accuracy, base)
    return measures
