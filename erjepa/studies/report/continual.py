"""The section on sequences of datasets: accuracy after each stage, forgetting and transfer."""

from collections.abc import Iterator

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
from erjepa.studies.report.sections import Method, Parts, section
from erjepa.studies.report.table import Table, spread
from erjepa.studies.statistics.forgetting import continual_measures

_RUN = ["method", "seed"]
# Headings of the fields of ``Continual``, and what each is.
_MEASURES = {
    "Forgetting": "the best accuracy after an earlier dataset minus the last accuracy, in points "
    "(Chaudhry et al. 2018)",
    "Backward transfer": "the last accuracy of a dataset minus that after training on it "
    "(Lopez-Paz & Ranzato 2017)",
    "Forward transfer": "the accuracy before training on a dataset minus the untrained model's "
    "(Lopez-Paz & Ranzato 2017)",
}


@section("One dataset after the other")
def continual(
    results: Results,
    methods: list[str],
    share_of_joint: bool = False,
    curves: list[Method] | None = None,
) -> Parts:
    """Accuracy on every dataset after each stage of a sequence, forgetting and transfer.

    With ``share_of_joint`` also the average accuracy as a percentage of that of joint training.
    ``curves`` names the methods that have a curve, by default all if they can be told apart.
    With ``score_stages: own`` there are no curves.
    """
    if not results.config.continual:
        raise Unavailable("the datasets are no sequence (key `continual`)")
    names, last = results.datasets, results.datasets[-1]
    rows = select(results.runs, method=methods, stage=names, dataset=names)
    rows = rows.drop_duplicates(["cell", "dataset"], keep="last")
    only_own = results.config.score_stages == "own"
    if only_own:  # they may have been scored on all before
        rows = rows[(rows.stage == last) | (rows.stage == rows.dataset)]
    scored = set(rows.method)
    settings = {m: results.config.controls(m) for m in methods if m in scored}
    sequences = [method for method, one in settings.items() if one.has_stages]
    trained_on = {m: one.trains_on for m, one in settings.items() if not one.has_stages}
    at_end = rows[rows.stage == last]
    if all(trained_on.get(method) == "nothing" for method in at_end.method):
        raise Unavailable("no run has reached the end of the sequence")
    wide = pivot(rows, [*_RUN, "stage"], "dataset", "accuracy").reindex(columns=names)
    ends = wide.xs(last, level="stage")
    note = results.note(ends.reset_index(), methods)
    means = ends.groupby(level="method").mean()
    joints, untrained = (
        [m for m, on in trained_on.items() if on == what and m in means.index]
        for what in ("all", "nothing")
    )

    drawn = sequences if curves is None else curves
    if curves is not None and len(drawn) > NUM_STYLES:
        raise ValueError(f"report: name at most {NUM_STYLES} methods as `curves`")
    if 0 < len(drawn) <= NUM_STYLES and not only_own:
        joint = results.nearest(drawn[0], joints) if joints else None
        dotted = f"; dotted: {joint}, on all datasets at once" if joint else ""
        yield Figure(
            "Accuracy on each dataset after each stage of the sequence"
            f"{results.if_seeds(': means and sample standard deviations')}{dotted}. {note}",
            _curves(rows, names, drawn, means.loc[joint] if joint else None),
            columns=min(3, len(names)),
        )

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

    after = rows.stage.mask(only_own & (rows.stage != last), "itself")
    which = f"itself and on {last}" if only_own else "another"
    after = after.mask(~rows.method.isin(sequences), rows.method.map(trained_on))
    cells = pivot(rows.assign(after=after), [*_RUN, "after"], "dataset", "accuracy")
    yield Table(
        f"Accuracy (%) on each dataset after training on {which}{results.if_seeds(MEAN)}. {note}",
        spread(cells[names], {"Method": "method", "After": "after"}),
        name="matrix",
    )

    base = means.loc[untrained[0]].tolist() if untrained else None
    columns = {"Average accuracy (%)": ends.mean(axis=1, skipna=False)}
    measures = _measures(wide, names, base).reindex(ends.index)
    known = dict(measures.dropna(axis=1, how="all").items())
    columns |= known
    meanings = "".join(f" {name}: {_MEASURES[name]}." for name in known)
    kept = ""
    if joints:
        ceilings = means.loc[[results.nearest(m, joints) for m, _ in ends.index]]
        columns |= _kept(ends, ceilings.set_axis(ends.index), joints[0], share_of_joint)
        kept = (
            f" Kept: accuracy as a share of the mean accuracy of {joints[0]}, which has the "
            f"compute of all stages. Over {joints[0]}: accuracy minus that mean."
        )
    if len(joints) > 1:
        kept += (
            f" Of {' and '.join(joints)}, a method is compared with the one whose settings "
            "are closest to its own."
        )
    perplexities = _perplexities(at_end)
    columns |= {name: one.reindex(ends.index) for name, one in perplexities.items()}
    of_targets = " Perplexity: of the targets." if perplexities else ""
    yield Table(
        "Measures after the last dataset. Average accuracy: mean over datasets."
        f"{meanings}{kept}{of_targets} {note}",
        spread(columns, {"Method": "method"}),
        name="measures",
    )
    yield from _also_scored(results, methods)


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
        draw_curves(panel, of_dataset, "stage", "accuracy", sequences, err_style="bars")
        if ceiling is not None:
            panel.axhline(ceiling[name], color="#808080", linewidth=1, linestyle=":")
        panel.set(title=f"on {name}", xlabel="after", ylabel=PERCENT)
        panel.set_xticks(range(1, len(names) + 1), names)
    return picture


def _measures(
    wide: pd.DataFrame, names: list[str], untrained: list[float] | None
) -> pd.DataFrame:
    """Return forgetting and transfer of each run, as far as it was scored after its stages."""
    of_runs = {}
    for run, matrix in wide.groupby(level=_RUN, sort=False):
        accuracy = matrix.droplevel(_RUN).reindex(names).to_numpy()
        of_runs[run] = continual_measures(accuracy, untrained)
    runs = pd.MultiIndex.from_tuples(of_runs, names=_RUN)
    return pd.DataFrame(list(of_runs.values()), runs, [*_MEASURES], dtype=float)


def _kept(
    ends: pd.DataFrame, ceilings: pd.DataFrame, joint: str, share_of_joint: bool
) -> dict[str, pd.Series]:
    """Compare each run at the end with joint training, whose accuracies are ``ceilings``. There is
    no share of an accuracy of 0.
    """
    columns, last = {}, ends.columns[-1]
    above_zero = ceilings.mask(ceilings == 0)
    if share_of_joint:
        average = 100 * ends.mean(axis=1, skipna=False)
        columns[f"Average of {joint} (%)"] = average / ceilings.mean(axis=1)
    for name in ends.columns[:-1]:
        columns[f"Kept on {name} (%)"] = 100 * ends[name] / above_zero[name]
    return columns | {f"Over {joint} on {last}": ends[last] - ceilings[last]}


def _also_scored(results: Results, methods: list[str]) -> Iterator[Table]:
    """Yield the accuracy and perplexity on datasets that no run trains on, if there are any."""
    also = results.also_scored(methods)
    if also.empty:
        return
    columns = {}
    for name, of_name in also.groupby("dataset", sort=False):
        columns[f"Accuracy on {name} (%)"] = of_name.set_index(_RUN).accuracy
        columns |= _perplexities(of_name)
    yield Table(
        "Accuracy, and perplexity of the targets, on datasets that no run trains on, after the "
        f"last dataset. {results.note(also, methods)}",
        spread(columns, {"Method": "method"}),
        name="also_scored",
    )


def _perplexities(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the perplexity of each run on each dataset with ``target_loss``."""
    columns = {}
    for name, of_name in rows.groupby("dataset", sort=False):
        loss = of_name.set_index(_RUN).target_loss.astype(float)
        if loss.notna().any():
            columns[f"Perplexity on {name}"] = np.exp(loss)
    return columns
