"""Assignment of examples to optimizer steps and ranks."""

import math
from collections.abc import Iterator
from fractions import Fraction

import torch
from torch.utils.data import Sampler

from erjepa.datasets.mixture import Mixture


class StepSampler(Sampler[list[int]]):
    """Splits a seeded permutation of the dataset into optimizer steps, and steps into ranks.

    A step is ``batch_size * gradient_accumulation_steps * world_size`` consecutive examples of
    the permutation; rank ``r`` takes its positions ``r, r + world_size, ...``. So the examples
    of a step, and their order, depend only on the size of the step, not on how it is split::

        permutation  7 2 9 4 | 0 5 1 8 | 3 6        10 examples, 4 a step
        rank 0       7   9   | 0   1   | 3          yields [7, 9], [0, 1], [3]
        rank 1         2   4 |   5   8 |   6        yields [2, 4], [5, 8], [6]

    The last step of an epoch has the remaining examples; none is dropped or repeated. A rank
    without examples yields an empty list, so that all ranks yield equally often. With a
    ``mixture`` the permutation is of the examples that it assigns to the epoch.

    With a ``share`` of replayed pairs a step has correspondingly fewer new ones. Every rank then
    yields all new pairs of a step: the caller splits it after drawing the replayed pairs::

        share 0.25   7 2 9 | 4 0 5 | 1 8 3 | 6      3 new and 1 replayed

    Attributes:
        examples_per_step: examples of a full step, replayed ones included, over all ranks and
            micro-batches.

    Raises:
        ValueError: if the share leaves no room for a new pair.
    """

    def __init__(
        self,
        num_examples: int,
        *,
        batch_size: int,
        gradient_accumulation_steps: int,
        world_size: int,
        rank: int,
        seed: int,
        shuffle: bool = True,
        mixture: Mixture | None = None,
        share: float = 0.0,
        max_steps: int | None = None,
    ) -> None:
        self.num_examples = num_examples
        self.examples_per_step = batch_size * gradient_accumulation_steps * world_size
        self._world_size = world_size
        self._rank = rank
        self._seed = seed
        self._shuffle = shuffle
        self._mixture = mixture
        self._share = Fraction(str(share))
        self._max_steps = max_steps
        if math.ceil(self._share * self.examples_per_step) >= self.examples_per_step:
            raise ValueError(
                f"replay.share={share} leaves no room for a new pair in a step of "
                f"{self.examples_per_step}; set a smaller share or a larger batch_size"
            )
        self._epoch = 0
        self._start_step = 0

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps needed for as many new pairs as there are examples, at most
        ``max_steps``.
        """
        return min(self._all_steps, self._max_steps or self._all_steps)

    @property
    def _all_steps(self) -> int:
        new_per_step = self.examples_per_step * (1 - self._share)
        return math.floor((self.num_examples - 1) / new_per_step) + 1

    def num_replayed(self, step: int) -> int:
        """Return how many pairs the 0-based ``step`` of an epoch replays; fractions carry over,
        also to the next epoch.
        """
        num_new = self._first(step + 1) - self._first(step)
        return self.examples_per_step - num_new

    def _first(self, step: int) -> int:
        """Return the number of new pairs before step ``step`` of an epoch."""
        size = self.examples_per_step
        carried = self._share * size * self.steps_per_epoch * self._epoch % 1
        first = size * step - math.floor(self._share * size * step + carried)
        # The steps that are left have room for the other new pairs.
        return max(first, self.num_examples - size * (self._all_steps - step))

    def set_position(self, epoch: int, step: int = 0) -> None:
        """Make the next iteration start at step ``step`` (0-based) of ``epoch``."""
        self._epoch, self._start_step = epoch, step

    def __len__(self) -> int:
        return self.steps_per_epoch - self._start_step

    def __iter__(self) -> Iterator[list[int]]:
        for examples in self.of_all_ranks():
            yield examples if self._share else examples[self._rank :: self._world_size]

    def of_all_ranks(self) -> Iterator[list[int]]:
        """Yield the examples of each step on all ranks."""
        order = self._order()
        for step in range(self._start_step, self.steps_per_epoch):
            yield order[self._first(step) : self._first(step + 1)]

    def _order(self) -> list[int]:
        examples = list(range(self.num_examples))
        if self._mixture is not None:
            examples = self._mixture.places(self._epoch)
        if not self._shuffle:
            return examples
        # With seed + epoch as seed, runs with consecutive seeds would share permutations.
        generator = torch.Generator().manual_seed(self._seed)
        for _ in range(self._epoch + 1):
            order = torch.randperm(self.num_examples, generator=generator)
        return [examples[i] for i in order.tolist()]
