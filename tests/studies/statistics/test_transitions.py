"""Changes of accuracy and predictions from checkpoint to checkpoint."""

from itertools import product

import numpy as np
import pandas as pd

from erjepa.studies.statistics.transitions import (
    history_order,
    transition_rates,
    transitions,
)

# Checkpoints x examples.
CORRECT = [
    [0, 0, 0, 1, 1, 1],
    [1, 0, 0, 1, 0, 1],
    [1, 1, 1, 1, 1, 1],
    [1, 1, 1, 0, 1, 1],
]


def history(runs):
    """Run to its verdicts, checkpoints x examples, as a frame."""
    return pd.concat(
        {run: pd.DataFrame(verdicts, dtype=bool).T for run, verdicts in runs.items()},
        names=["run", "id"],
    )


def test_transitions():
    # Another run, whose order of checkpoints is reversed, keeps its own counts.
    counts = transitions(history({"b": CORRECT, "a": CORRECT[::-1]}))
    names = ["wrong", "corrected", "right", "lost"]
    assert list(counts.columns) == names and list(counts.index.names) == [
        "run",
        "point",
    ]
    expected = [[3, 1, 3, 1], [3, 3, 3, 0], [0, 0, 6, 1]]
    assert counts.loc["b"].to_numpy().tolist() == expected
    assert counts.loc["a"].loc[1].tolist() == [1, 1, 5, 0]
    rates = transition_rates(counts.loc["b"])
    assert np.allclose(rates["Lost (%)"], [100 / 3, 0, 100 / 6])
    assert np.allclose(rates["Corrected (%)"][:2], [100 / 3, 100])
    assert np.isnan(rates["Corrected (%)"].iloc[2])  # nothing was wrong


def test_history_order_against_sorting_histories():
    histories = [*product((0, 1), repeat=3)] * 2
    expected = sorted(
        range(len(histories)), key=lambda i: [-right for right in histories[i][::-1]]
    )
    assert history_order(pd.DataFrame(histories)).tolist() == expected
