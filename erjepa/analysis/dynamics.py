"""Runs over their checkpoints: accuracy that falls, predictions corrected and lost."""

import numpy as np
import pandas as pd


def drops(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Losses of accuracy between successive checkpoints.

    Args:
        accuracy (pd.DataFrame): a row a run, a column a checkpoint, in order.

    Returns:
        pd.DataFrame: a row a run; ``declines``: checkpoints below the one before;
        ``largest``: the largest of these losses, 0 without any; ``best_minus_last``:
        accuracy at the best checkpoint less that at the last.
    """
    losses = -accuracy.diff(axis=1).iloc[:, 1:]
    return pd.DataFrame(
        {
            "declines": (losses > 0).sum(axis=1),
            "largest": losses.max(axis=1).clip(lower=0).fillna(0.0),
            "best_minus_last": accuracy.max(axis=1) - accuracy.iloc[:, -1],
        }
    )


def transitions(correct: pd.DataFrame) -> pd.DataFrame:
    """What becomes of predictions from each checkpoint to the next.

    Args:
        correct (pd.DataFrame): whether a prediction is right: a row for each example of each
            run, the levels of the index but the last naming the run; a column a checkpoint,
            in order.

    Returns:
        pd.DataFrame: a row for each run and later checkpoint, level ``point``: how many
        were ``wrong`` at the earlier one, how many of those are ``corrected``, how many were
        ``right`` and how many of those are ``lost``.
    """
    before = correct.shift(1, axis=1).iloc[:, 1:].astype(bool)
    after = correct.iloc[:, 1:]
    runs = list(range(correct.index.nlevels - 1))
    counts = {
        "wrong": ~before,
        "corrected": ~before & after,
        "right": before,
        "lost": before & ~after,
    }
    return pd.DataFrame(
        {
            name: one.groupby(level=runs, sort=False).sum().stack()
            for name, one in counts.items()
        }
    ).rename_axis([*correct.index.names[:-1], "point"])


def transition_rates(counts: pd.DataFrame) -> pd.DataFrame:
    """Percent of wrong predictions that are corrected, and of right ones that are lost.

    NaN where nothing is wrong, or right.
    """
    return pd.DataFrame(
        {
            "Corrected (%)": 100 * counts.corrected / counts.wrong.replace(0, np.nan),
            "Lost (%)": 100 * counts.lost / counts.right.replace(0, np.nan),
        }
    )


def history_order(correct: pd.DataFrame) -> np.ndarray:
    """Order of examples for a picture of their histories.

    Examples that are right at the last checkpoint come first; among equals those that are
    right at the checkpoint before, and so on back to the first; then the lower row.

    Args:
        correct (pd.DataFrame): a row an example, a column a checkpoint.

    Returns:
        np.ndarray: positions of rows.
    """
    return np.lexsort(~correct.to_numpy(bool).T)
