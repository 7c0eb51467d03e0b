"""Runs over their checkpoints: accuracy that falls, predictions corrected and lost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Transition:
    """What becomes of predictions from one checkpoint to the next.

    Args:
        wrong (int): wrong ones at the first.
        corrected (int): those of them that are right at the second.
        right (int): right ones at the first.
        lost (int): those of them that are wrong at the second.
    """

    wrong: int
    corrected: int
    right: int
    lost: int

    @property
    def correction_rate(self) -> float | None:
        """Share of wrong predictions that become right; None where none is wrong."""
        return self.corrected / self.wrong if self.wrong else None

    @property
    def loss_rate(self) -> float | None:
        """Share of right predictions that become wrong; None where none is right."""
        return self.lost / self.right if self.right else None


def transitions(correct: Sequence[Sequence[bool]]) -> list[Transition]:
    """Transitions between successive checkpoints.

    Args:
        correct (Sequence[Sequence[bool]]): for each checkpoint, in order, whether each
            example is right; the same examples in the same order.

    Returns:
        list[Transition]: one fewer than checkpoints.
    """
    matrix = np.asarray(correct, dtype=bool)
    return [
        Transition(
            wrong=int((~before).sum()),
            corrected=int((~before & after).sum()),
            right=int(before.sum()),
            lost=int((before & ~after).sum()),
        )
        for before, after in zip(matrix[:-1], matrix[1:], strict=True)
    ]


def total_transition(parts: Sequence[Transition]) -> Transition:
    """All transitions of a run together."""
    return Transition(
        *(
            sum(getattr(one, name) for one in parts)
            for name in ("wrong", "corrected", "right", "lost")
        )
    )


@dataclass(frozen=True)
class Drops:
    """What a run loses of its accuracy between checkpoints.

    Args:
        declines (int): checkpoints whose accuracy is below that of the one before.
        largest (float): the largest of these losses; 0 without any.
        best_minus_last (float): accuracy at the best checkpoint less that at the last.
    """

    declines: int
    largest: float
    best_minus_last: float


def drops(accuracies: Sequence[float]) -> Drops:
    """Losses of accuracy between successive checkpoints of a run.

    Args:
        accuracies (Sequence[float]): at each checkpoint, in order; at least one.

    Returns:
        Drops: in the unit of ``accuracies``.
    """
    losses = -np.diff(np.asarray(accuracies, dtype=float))
    return Drops(
        declines=int((losses > 0).sum()),
        largest=float(losses.max(initial=0.0)),
        best_minus_last=float(max(accuracies) - accuracies[-1]),
    )


def history_order(correct: Sequence[Sequence[bool]]) -> list[int]:
    """Order of examples for a picture of their histories.

    Examples that are right at the last checkpoint come first; among equals those that are
    right at the checkpoint before, and so on back to the first; then the lower index.

    Args:
        correct (Sequence[Sequence[bool]]): checkpoints x examples, as above.

    Returns:
        list[int]: indices of examples.
    """
    return np.lexsort(~np.asarray(correct, dtype=bool)).tolist()
