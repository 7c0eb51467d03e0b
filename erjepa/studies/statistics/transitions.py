"""What becomes of predictions from checkpoint to checkpoint."""

import numpy as np
import pandas as pd


def transitions(correct: pd.DataFrame) -> pd.DataFrame:
    """What becomes of predictions from each checkpoint to the next.

    Args:
        correct: whether a prediction is right: a row for each example of each run, the levels of
            the index but the last naming the run; a column a checkpoint, in order.

    Returns:
        A row for each run and later checkpoint, level ``point``: how many were ``wrong`` at the
        earlier one, how many of those are ``corrected``, how many were ``right`` and how many of
        those are ``lost``.
    """
    before, after = correct.shift(axis=1).iloc[:, 1:].astype(bool), correct.iloc[:, 1:]
    kinds = {"wrong": ~before, "corrected": ~before & after}
    kinds |= {"right": before, "lost": before & ~after}
    runs = list(correct.index.names[:-1])
    counts = {k: x.groupby(runs, sort=False).sum().stack() for k, x in kinds.items()}
    return pd.DataFrame(counts).rename_axis([*runs, "point"])


def transition_rates(counts: pd.DataFrame) -> pd.DataFrame:
    """Percent of wrong predictions that are corrected, and of right ones that are lost.

    NaN where nothing is wrong, or right.
    """
    corrected, lost = counts.corrected / counts.wrong, counts.lost / counts.right
    return 100 * pd.DataFrame({"Corrected (%)": corrected, "Lost (%)": lost})


def history_order(correct: pd.DataFrame) -> np.ndarray:
    """Positions of rows (an example each; a column a checkpoint), for a picture of them.

    Examples that are right at the last checkpoint come first; among equals those that are
    right at the checkpoint before, and so on back to the first; then the lower row.
    """
    return np.lexsort(~correct.to_numpy(bool).T)
