"""What models answered: predictions of checkpoints on the same examples, as a frame."""

import json
from collections.abc import Sequence

import pandas as pd

from erjepa.report.results import Results, Unavailable


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
            lines = path.read_text().splitlines()
            found = pd.DataFrame([json.loads(x) for x in lines if x.strip()])
            found = found.sort_values("id").assign(correct=found[run.primary].eq(True))
            found[["prompt", "target", "output"]]  # there, or it is a KeyError
        except (OSError, ValueError, KeyError) as error:
            raise Unavailable(
                f"{path}: predictions cannot be read ({error!r})"
            ) from None
        if "extracted" not in found:
            found["extracted"] = found["output"]
        keys = {"method": run.method, "seed": run.seed, "point": run.point}
        frames.append(found.assign(**keys, extracted=found["extracted"].map(str)))
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
    counts = ends.groupby("seed").size()
    shared = [s for s in results.seeds if counts.get(s, 0) == len(methods)]
    if not shared:
        raise Unavailable(f"no seed is finished of all of {', '.join(methods)}")
    return read_predictions(results, pd.concat([ends[ends.seed == s] for s in shared]))


def by_method(found: pd.DataFrame, column: str) -> pd.DataFrame:
    """``column`` of predictions: a row a seed and example, in order, a column a method."""
    wide = found.pivot(index=["seed", "id"], columns="method", values=column)
    return wide.reindex(
        pd.MultiIndex.from_frame(found[["seed", "id"]].drop_duplicates())
    )
