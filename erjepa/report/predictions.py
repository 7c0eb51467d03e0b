"""What models answered: predictions of checkpoints on the same examples, as a frame."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from erjepa.io import read_jsonl
from erjepa.report.results import Results, Unavailable, pivot
from erjepa.report.table import printable


def read_predictions(results: Results, runs: pd.DataFrame) -> pd.DataFrame:
    """Predictions of some rows of ``runs``, on the same examples, in order of their ids.

    Columns ``method seed point id prompt target output extracted correct`` and, where the
    evaluation computed it, ``cosine``. Unavailable if they cannot be read, or if they
    are of different examples.
    """
    frames = []
    for run in runs.itertuples():
        path = results.output / run.predictions
        try:
            found = pd.DataFrame([_printable(row) for _, row in read_jsonl(path)])
            found = found.sort_values("id").assign(correct=found[run.primary].eq(True))
            found[["prompt", "target", "output"]]  # there, or it is a KeyError
        except (OSError, ValueError, KeyError) as error:
            raise Unavailable(
                f"{path}: predictions cannot be read ({error!r})"
            ) from None
        keys = {"method": run.method, "seed": run.seed, "point": run.point}
        extracted = found.get("extracted", found["output"]).map(str)
        frames.append(found.assign(**keys, extracted=extracted))
    targets = [frame["target"].tolist() for frame in frames]
    if any(one != targets[0] for one in targets):
        raise Unavailable("the checkpoints were scored on different examples")
    return pd.concat(frames, ignore_index=True)


def final_predictions(
    results: Results, dataset: str, methods: Sequence[str]
) -> pd.DataFrame:
    """Predictions at the ends of runs, of the seeds that all of the methods have.

    In order of seeds, then methods; Unavailable if they share no seed.
    """
    ends = results.final(dataset, methods)
    shared = ends[ends.groupby("seed").method.transform("size") == len(methods)]
    if shared.empty:
        raise Unavailable(f"no seed is finished of all of {', '.join(methods)}")
    place = shared.seed.map(results.seeds.index)
    return read_predictions(results, shared.loc[place.sort_values(kind="stable").index])


def by_method(found: pd.DataFrame, column: str) -> pd.DataFrame:
    """``column`` of predictions: a row a seed and example, in order, a column a method."""
    return pivot(found, ["seed", "id"], "method", column)


def _printable(row: dict[str, Any]) -> dict[str, Any]:
    return {k: printable(v) if isinstance(v, str) else v for k, v in row.items()}
