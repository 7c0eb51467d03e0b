"""Measures of continual learning: forgetting and transfer.

Both are computed from the matrix ``a[i][j]``, the accuracy on task j after stage i, with i and j
from 1 to T. Their sources are

- Lopez-Paz & Ranzato 2017, "Gradient Episodic Memory for Continual Learning" (GEM):
  backward and forward transfer;
- Chaudhry et al. 2018, "Riemannian Walk for Incremental Learning": forgetting.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Continual(NamedTuple):
    """Measures of a sequence of tasks, in the unit of its accuracies."""

    forgetting: float  # mean over j < T of max_{i < T} a[i][j] - a[T][j]
    # Mean over j < T of a[T][j] - a[j][j]; negative if later tasks hurt earlier ones
    backward_transfer: float
    # Mean over j > 1 of a[j - 1][j] - b[j], where b is the accuracy of the untrained model:
    # positive if earlier tasks help later ones; None without b
    forward_transfer: float | None


def continual_measures(
    accuracy: Sequence[Sequence[float]], untrained: Sequence[float] | None = None
) -> Continual:
    """Compute forgetting and transfer of one run over a sequence of tasks.

    Args:
        accuracy: the matrix a, [T, T] with T of at least 2, one row per stage.
        untrained: b, the accuracies of the untrained model, [T]; ``None``: forward transfer is
            not computed.
    """
    a = np.asarray(accuracy, dtype=float)
    end, learned = a[-1], np.diagonal(a)
    forward = None
    if untrained is not None:
        forward = float(np.mean(np.diagonal(a, offset=1) - np.asarray(untrained)[1:]))
    return Continual(
        forgetting=float((a[:-1, :-1].max(axis=0) - end[:-1]).mean()),
        backward_transfer=float((end - learned)[:-1].mean()),
        forward_transfer=forward,
    )
