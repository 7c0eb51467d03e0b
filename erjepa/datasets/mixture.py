"""How often an epoch has the examples of each of several datasets."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

import torch


class Mixture:
    """Deals the examples of several datasets into epochs, in given shares.

    An epoch has as many examples as the datasets have together, N, and dataset d has its share
    :math:`w_d / \\sum w` of them. A dataset goes through its examples in an order drawn anew for
    each pass, and each epoch continues where the last one ended: after any epoch, two examples of
    a dataset have been dealt equally often, or one of them once more::

        sizes 2 and 6, weights 1 and 1    epoch 0               epoch 1
        dataset 0                         b a | a b             a b | b a
        dataset 1                         e h c g               d f | f c

    Weights in proportion to the sizes give every example once, as the concatenation does.

    Attributes:
        counts: examples that an epoch has of each dataset.

    Raises:
        ValueError: if an epoch would have none of a dataset.
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
        """The examples of an epoch, by their places in the concatenation, ascending."""
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
    """Whole numbers in proportion to ``weights`` whose sum is ``total``.

    By largest remainders (Hamilton's method): each is its share rounded down, and what is left
    goes to the largest fractions, ties to the first.
    """
    exact = [Fraction(weight) for weight in weights]
    shares = [total * weight / sum(exact) for weight in exact]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts
