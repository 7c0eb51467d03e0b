"""The section on embeddings: whether they tell pairs apart."""

import pandas as pd

from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import Parts, section
from erjepa.report.table import Table, spread

_COLUMNS = {
    "cosine_paired": "Cosine of a pair",
    "cosine_shuffled": "of strangers",
    "rankme": "RankMe",
    "retrieval_at_1": "Retrieval@1",
}


@section("Embeddings", by_default=False)
def embeddings(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Cosines of pairs and of strangers, rank of the targets, predictions that find theirs."""
    ends = results.final(dataset, methods)
    logged = pd.DataFrame(ends.metrics.tolist(), index=ends.index)
    logged = logged.reindex(columns=list(_COLUMNS)).rename(columns=_COLUMNS)
    logged = logged.dropna(how="all")
    if logged.empty:
        raise Unavailable("no log of a run has cosines (overrides.log_collapse=True)")
    ends = ends.loc[logged.index]
    yield Table(
        f"Embeddings of the last 50 steps on {dataset}: cosine of a prediction and its target; "
        "of a prediction and another pair's target; RankMe, the effective number of dimensions "
        "of a step's targets; share of predictions whose nearest target in the step is their "
        f"own. {results.note(ends, list(ends.method.unique()))}",
        spread(logged, {"Method": ends.method}),
        digits=dict.fromkeys(_COLUMNS.values(), 3),
    )
