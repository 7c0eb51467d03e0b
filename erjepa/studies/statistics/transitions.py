"""Counts of predictions that are corrected and lost between successive checkpoints."""

import numpy as np
import pandas as pd


def transitions(correct: pd.DataFrame) -> pd.DataFrame:
    """Count predictions that are corrected or lost from each checkpoint to the next.

    Args:
        correct: whether each prediction is right. One row per example of each run; all index
            levels except the last name the run. One column per checkpoint, in order.

    Returns:
        One row per run and checkpoint after the first (index level ``point``), with the number of
        predictions ``wrong`` at the previous checkpoint, ``corrected`` since, ``right`` at the
        previous checkpoint and ``lost`` since.
    """
    before, after = correct.shift(axis=1).iloc[:, 1:].astype(bool), correct.iloc[:, 1:]
    kinds = {"wrong": ~before, "corrected": ~before & after}
    kinds |= {"right": before, "lost": before & ~after}
    runs = list(correct.index.names[:-1])
    counts = {k: x.groupby(runs, sort=False).sum().stack() for k, x in kinds.items()}
    return pd.DataFrame(counts).rename_axis([*runs, "point"])


def transition_rates(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the percentages of wrong predictions corrected and of right predictions lost.

    A percentage is NaN if there are no wrong, or no right, predictions.
    """
    corrected, lost = counts.corrected / counts.wrong, counts.lost / counts.right
    return 100 * pd.DataFrame({"Corrected (%)": corrected, "Lost (%)": lost})


def history_order(correct: pd.DataFrame) -> np.ndarray:
    """Return the order in which a figure shows the rows of ``correct``.

    ``correct`` has one row per example and one column per checkpoint. Examples right at the last
    checkpoint come first; ties are broken by the checkpoint before, and so on back to the first,
    then by position.
    """
    return np.lexsort(~correct.to_numpy(bool).T)
