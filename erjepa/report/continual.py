"""The section on sequences of datasets: what is kept, and what is carried over."""

import pandas as pd

from erjepa.report.figures import PERCENT, Figure, canvas, draw_curves
from erjepa.report.results import Results, Unavailable, pivot
from erjepa.report.sections import Parts, section
from erjepa.report.table import Table, spread
from erjepa.statistics.forgetting import continual_measures

_RUN = ["method", "seed"]


@section("One dataset after the other", by_default=False)
def continual(results: Results, methods: list[str]) -> Parts:
    """Accuracy on every dataset after each stage, and what it says of forgetting."""
    if not results.config.get("continual"):
        raise Unavailable("the datasets are no sequence (key `continual`)")
    names, last = results.datasets, results.datasets[-1]
    rows = results.of(None, methods).drop_duplicates(["cell", "dataset"], keep="last")
    wide = pivot(rows, [*_RUN, "stage"], "dataset", "accuracy").reindex(columns=names)
    ends = wide.xs(last, level="stage")
    note = results.note(ends.reset_index(), methods)
    by = {kind: results.trained_on(kind) for kind in ("all", "nothing")}
    joint = _mean_of(ends, by["all"])

    picture, panels = canvas(len(names))
    sequences = [name for name in methods if name not in by.values()]
    curves = rows[rows.method.isin(sequences)]
    curves = curves.assign(stage=curves.stage.map(names.index) + 1)
    for name, panel in zip(names, panels, strict=True):
        draw_curves(
            panel, curves[curves.dataset == name], "stage", "accuracy", sequences
        )
        if joint is not None:
            panel.axhline(joint[name], color="#808080", linewidth=0.8, linestyle=":")
        panel.set(title=f"on {name}", xlabel="after", ylabel=PERCENT)
        panel.set_xticks(range(1, len(names) + 1), names)
    line = f"; dotted: {by['all']}" if joint is not None else ""
    yield Figure(
        "Accuracy on each dataset after each stage of the sequence: means, bands of one "
        f"sample standard deviation{line}. {note}",
        picture,
        columns=min(3, len(names)),
    )

    yield Table(
        "Accuracy (%) on each dataset after each stage, mean ± one sample standard "
        f"deviation. {note}",
        spread(wide, {"Method": "method", "After": "stage"}),
        name="matrix",
    )

    untrained = _mean_of(ends, by["nothing"])
    measures = {
        run: continual_measures(matrix.droplevel(_RUN).reindex(names), untrained)
        for run, matrix in wide.groupby(level=_RUN, sort=False)
        if run[0] in sequences and matrix.notna().to_numpy().all()
        if len(matrix) == len(names)
    }
    columns = {"Average accuracy (%)": ends.mean(axis=1, skipna=False)}
    for heading, field in (
        ("Forgetting", "forgetting"),
        ("Backward transfer", "backward_transfer"),
        ("Forward transfer", "forward_transfer"),
    ):
        values = {run: getattr(one, field) for run, one in measures.items()}
        columns[heading] = pd.Series(values, dtype=float).reindex(ends.index)
    if joint is not None:
        for name in names:
            columns[f"Kept on {name} (%)"] = 100 * ends[name] / joint[name]
        columns[f"Less {by['all']} on {last}"] = ends[last] - joint[last]
    kept = (
        f" Kept: share of the mean accuracy of {by['all']}, at the same compute in all."
        if joint is not None
        else ""
    )
    yield Table(
        "At the end of the sequence, in points of accuracy: average over datasets; "
        "forgetting, the best accuracy at an earlier stage less the last (Chaudhry et al. "
        "2018); backward transfer, the last less that after its own stage; forward transfer, "
        "before its own stage less the untrained model's (Lopez-Paz & Ranzato 2017)."
        f"{kept} {note}",
        spread(columns, {"Method": "method"}),
        name="measures",
    )


def _mean_of(ends: pd.DataFrame, method: str | None) -> pd.Series | None:
    """Mean accuracy of a method on each dataset, if it was run."""
    if method is None or method not in ends.index.get_level_values("method"):
        return None
    return ends.xs(method, level="method").mean()
