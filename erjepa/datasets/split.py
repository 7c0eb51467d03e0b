"""Held-out pairs for validation."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import torch

from erjepa.datasets.pairs import Pair


class Split(NamedTuple):
    """Example ids of the two parts of a dataset.

    Args:
        train: ids of the training pairs, ascending.
        held_out: ids of the held-out pairs, in the order they were drawn: a smaller
            ``validation.size=n`` holds out the first n of them.
        copies: number of pairs in neither part, because they are copies of held-out ones.
    """

    train: list[int]
    held_out: list[int]
    copies: int


def count_held_out(size: int | float, pairs: int) -> int:
    """Return the number of ``pairs`` that ``validation.size`` holds out."""
    return size if isinstance(size, int) else ceil(Fraction(str(size)) * pairs)


def hold_out(dataset: Sequence[Pair], size: int | float, seed: int = 0) -> Split:
    """Draw held-out pairs; the draw depends only on the dataset, the size and the seed.

    Pairs with the same source and target as a held-out one are excluded from training too. A
    float ``size`` is a fraction of the dataset, rounded up.

    Raises:
        ValueError: if no pair is left to train on.
    """
    count = count_held_out(size, len(dataset))
    if count >= len(dataset):
        raise ValueError(
            f"validation.size={size}: it must be below the number of training pairs, "
            f"{len(dataset)}, of which it is a part"
        )
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.randperm(len(dataset), generator=generator)[:count].tolist()
    known = {text_of(dataset[i]) for i in held_out}
    train = [i for i in range(len(dataset)) if text_of(dataset[i]) not in known]
    if not train:
        raise ValueError(
            f"validation.size={size}: every other pair is a copy of a held-out one; "
            "hold out fewer"
        )
    return Split(train, held_out, len(dataset) - count - len(train))


def text_of(pair: Pair) -> tuple[bytes, bytes]:
    """Return what copies of a pair have in common: the tokens of source and target."""
    return pair.source.tobytes(), pair.target.tobytes()
