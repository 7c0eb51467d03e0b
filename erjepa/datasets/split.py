"""Pairs held out of the training pairs, to validate on."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import torch

from erjepa.datasets.pairs import Pair


class Split(NamedTuple):
    """A dataset in two, by example id.

    Args:
        train: examples to train on, ascending.
        held_out: the others, in the order they were drawn: its first n are what a smaller
            ``validation.size=n`` holds out.
        copies: examples in neither, because a held-out one has the same tokens.
    """

    train: list[int]
    held_out: list[int]
    copies: int


def hold_out(dataset: Sequence[Pair], size: int | float, seed: int = 0) -> Split:
    """Draw pairs to hold out; which ones depends on the dataset and the seed alone.

    A copy of a held-out pair, in source and target, leaves the training pairs too. A ``size``
    below 1 is a fraction, rounded up.

    Raises:
        ValueError: if no pair is left to train on.
    """
    count = size if isinstance(size, int) else ceil(Fraction(str(size)) * len(dataset))
    if count >= len(dataset):
        raise ValueError(
            f"validation.size={size}: it must be below the number of training pairs, "
            f"{len(dataset)}, of which it is a part"
        )
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.randperm(len(dataset), generator=generator)[:count].tolist()
    known = {_text(dataset[i]) for i in held_out}
    train = [i for i in range(len(dataset)) if _text(dataset[i]) not in known]
    if not train:
        raise ValueError(
            f"validation.size={size}: every other pair is a copy of a held-out one; "
            "hold out fewer"
        )
    return Split(train, held_out, len(dataset) - count - len(train))


def _text(pair: Pair) -> tuple[bytes, bytes]:
    return pair.source.tobytes(), pair.target.tobytes()
