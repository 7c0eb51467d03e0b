"""Mixing of several datasets in given proportions."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

import torch


class Mixture:
    """Assigns the examples of several datasets to epochs, in given proportions.

    An epoch has as many examples as all datasets together, of which a fraction
    :math:`w_d / \\sum w` is from dataset d. Every pass over a dataset has a new random order, and
    each epoch continues where the previous one stopped, so that the numbers of times that any two
    examples of a dataset were used differ by at most one::

        sizes 2 and 6, weights 1 and 1    epoch 0               epoch 1
        dataset 0                         b a | a b             a b | b a
        dataset 1                         e h c g               d f | f c

    With weights proportional to the sizes, every epoch has every example once.

    Attributes:
        counts: number of examples of each dataset in an epoch.

    Raises:
        ValueError: if an epoch would have no example of some dataset.
    """

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float], seed: int
    ) -> None:
        self.counts = apportion(sum(sizes), weights)
        self._sizes = list(sizes)
        for i, (size, count) in enumerate(zip(sizes, self.counts, strict=True)):
            if not size:
                raise ValueError(f"no pair of dataset[{i}] is left to train on")
            if not count:
                raise ValueError(
                    f"dataset[{i}].weight={weights[i]} gives it none of the {sum(sizes)} "
                    "pairs of an epoch; raise it, or leave the dataset out"
                )
        drawn = torch.randint(
            1 << 62, (len(sizes),), generator=torch.Generator().manual_seed(seed)
        )
        self._seeds = drawn.tolist()

    def places(self, epoch: int) -> list[int]:
        """Return the examples of an epoch, as ascending indices into the concatenation."""
        dealt: list[int] = []
        starts = accumulate(self._sizes, initial=0)
        for start, size, count, seed in zip(
            starts, self._sizes, self.counts, self._seeds, strict=False
        ):
            generator = torch.Generator().manual_seed(seed)
            first, stop = epoch * count, (epoch + 1) * count
            passes = [
                torch.randperm(size, generator=generator)
                for _ in range(-(-stop // size))
            ]
            dealt += (start + torch.cat(passes)[first:stop]).tolist()
        return sorted(dealt)


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Split ``total`` into integers in proportion to ``weights``.

    By largest remainders (Hamilton's method): each exact quota is rounded down, and what is left
    goes to the quotas with the largest fractions, ties to the first.
    """
    exact = [Fraction(weight) for weight in weights]
    shares = [total * weight / sum(exact) for weight in exact]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts
