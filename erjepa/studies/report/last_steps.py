"""Sections on the metrics of the last logged steps: losses, embeddings, benefit of replay."""

import pandas as pd

from erjepa.studies.report.results import Results, Unavailable
from erjepa.studies.report.sections import Parts, section
from erjepa.studies.report.table import Table, spread

_LOSSES = {
    "lm_loss": "Next token",
    "jepa_loss": "JEPA",
    "replay_lm_loss": "Next token, replayed",
    "replay_jepa_loss": "JEPA, replayed",
}
_EMBEDDINGS = {
    "cosine_paired": "Cosine, own target",
    "cosine_shuffled": "Cosine, other target",
    "rankme": "RankMe",
    "retrieval_at_1": "Retrieval@1",
}
_PROPOSITION = {
    "replay_benefit": "Effect on the loss",
    "replay_benefit_expected": "First-order effect",
    "replay_gradient_norm": "Gradient norm",
    "replay_gradient_outside": "Orthogonal part",
    "gradient_cosine": "Cosine",
}
# With a small learning rate a single step changes a loss by less than a thousandth.
_DIGITS = {"Effect on the loss": 5, "First-order effect": 5}


@section("Losses")
def losses(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Training losses at the end of runs."""
    title = f"Mean losses of the last 50 training steps on {dataset}, unweighted"
    yield _table(results, dataset, methods, title, _LOSSES, "losses")


@section("Embeddings")
def embeddings(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Cosines of matching and other pairs, rank of the target embeddings, retrieval of targets."""
    title = (
        f"Embeddings in the last 50 steps on {dataset}. Cosine of a prediction with its own "
        "target and with that of another pair. RankMe: effective number of dimensions of a "
        "step's targets. Retrieval@1: share of predictions whose nearest target in the step is "
        "their own"
    )
    wanted = "cosines (overrides.log_collapse=True)"
    yield _table(results, dataset, methods, title, _EMBEDDINGS, wanted)


@section("The proposition")
def proposition(results: Results, dataset: str, methods: list[str]) -> Parts:
    """Change of the replayed pairs' loss by their own gradient, and its first-order estimate."""
    title = (
        f"The paper's proposition in the last 50 steps on {dataset}. Effect: loss of the "
        "replayed pairs after a step with their gradient minus that after a step without it. "
        "First-order effect: minus the learning rate times β times the squared gradient norm. "
        "Gradient norm: that of the replayed pairs. Orthogonal part: norm of its part that is "
        "orthogonal to the gradient of the new pairs, an upper bound of the projected norm. "
        "Cosine: between the two gradients"
    )
    wanted = "updates (overrides.log_replay_gradients_every_n_steps=10)"
    yield _table(results, dataset, methods, title, _PROPOSITION, wanted)


def _table(
    results: Results,
    dataset: str,
    methods: list[str],
    title: str,
    columns: dict[str, str],
    wanted: str,
) -> Table:
    ends = results.final(dataset, methods, stage=dataset)
    logged = pd.DataFrame(ends.metrics.tolist(), index=ends.index)
    logged = logged.reindex(columns=list(columns)).rename(columns=columns)
    if columns is _LOSSES:  # a disabled loss is logged as 0
        logged = logged.where(logged != 0).dropna(axis=1, how="all")
    logged = logged.dropna(how="all")
    if logged.empty:
        raise Unavailable(f"no log of a run has {wanted}")
    ends = ends.loc[logged.index]
    note = results.note(ends, list(ends.method.unique()))
    frame = spread(logged, {"Method": ends.method})
    digits = {column: _DIGITS.get(column, 3) for column in logged}
    return Table(f"{title}. {note}", frame, digits=digits)
