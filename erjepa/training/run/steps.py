"""The steps of a run on one rank: micro-batches of new and of replayed pairs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from erjepa.checkpoints.fingerprint import data_of
from erjepa.datasets import Pair, StepSampler
from erjepa.packing import PackedBatch, PairCollator
from erjepa.replay import ReplayBatch
from erjepa.training.model.distributed import require_equal
from erjepa.training.run.data import fitting_pairs, mixture_of, split_pairs
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.run.progress import RunProgress
from erjepa.training.run.signals import leave_signals_to_parent


class Step(NamedTuple):
    """The micro-batches of a step on one rank."""

    batches: list[PackedBatch]
    # Replayed pairs in the batches, after the new ones in batch order.
    draw: ReplayBatch | None = None

    @property
    def checksum(self) -> int:
        """Checksum of the memory and the draw, see :class:`ReplayBatch`; 0 without a draw."""
        return 0 if self.draw is None else self.draw.checksum


class TrainingPairs:
    """The pairs that a run trains on, divided into steps and ranks.

    Args:
        run: its pairs that do not fit are removed, and some are held out.
        share: fraction of a step's pairs that are replayed.

    Attributes:
        sampler: deals the pairs to steps and ranks.
        train: the pairs to train on.
        loader: yields the packed micro-batches, ``list[PackedBatch]``, of each step from the
            sampler's position on.
        held_out: indices in the dataset of the pairs to validate on.
        jepa_every: one in this many steps, the first of them, has views; 1 for a run without.
    """

    def __init__(self, run: PreparedRun, share: float = 0.0) -> None:
        cfg, dataset, collators = run.cfg, run.dataset, run.collators
        if cfg.train_on_turns == "all":
            dataset.require_turns()
        largest, rows = dataset.pairs.largest_token, run.model.vocab_size
        if largest >= rows:
            raise ValueError(
                f"tokenizer: the pairs have token {largest}, but the model has {rows} embeddings; "
                "resize them, or remove tokens that were added to the tokenizer"
            )
        skip = cfg.skip_too_long
        fitting = fitting_pairs(run, dataset, collators.new, skip_too_long=skip)
        train, self.held_out = split_pairs(run, fitting)
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self.sampler = StepSampler(
            len(train),
            batch_size=cfg.batch_size,
            gradient_accumulation_steps=cfg.gradient_accumulation_steps,
            world_size=self._ranks,
            rank=self._rank,
            seed=cfg.drawn_seed,
            shuffle=cfg.shuffle,
            mixture=mixture_of(cfg, dataset, train),
            share=share,
            max_steps=cfg.max_steps_per_epoch,
        )
        # Only the pairs, which can also be pickled for spawned workers.
        self.train = Subset(cast(Dataset[Pair], dataset.pairs), train)
        # Without views all steps are alike.
        self.jepa_every = 1 if run.views == "none" else run.loss_fn.jepa_every
        self._packed = _PackedSteps(
            self.train,
            collators.new,
            cfg.gradient_accumulation_steps,
            self.jepa_every,
        )
        if share and self.jepa_every > 1:
            raise ValueError(
                f"loss.jepa_every={self.jepa_every} leaves steps without replay, but replay.share="
                f"{share} makes replayed pairs a part of every step; set replay.budget instead "
                "of replay.share"
            )
        self._cfg = cfg
        self.share = share
        self._replay_collator = collators.replay
        self._pins = run.device.type == "cuda"
        self._numbered = _NumberedSteps(self.sampler)
        self.loader = DataLoader(
            self._packed,
            batch_size=None,
            sampler=self._numbered,
            num_workers=cfg.num_workers,
            worker_init_fn=leave_signals_to_parent,
            pin_memory=self._pins,
            # A worker forked later would keep a copy of the memory that training has used since.
            persistent_workers=cfg.num_workers > 0,
            # By default every new iterator draws from the global state that dropout uses.
            generator=torch.Generator(),
        )

    @cached_property
    def data(self) -> dict[str, Any]:
        """What determines which pairs of the dataset are held out, see :func:`data_of`."""
        return data_of(self._cfg, cast(Sequence[Pair], self.train.dataset))

    def require_equal(self) -> None:
        """Wait for all ranks, and compare the pairs that they have read.

        Raises:
            ValueError: naming the ranks that have other pairs than rank 0.
        """
        require_equal(self.data["pairs"], key="dataset", what="pairs")

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.steps_per_epoch

    def has_jepa_loss(self, step: int) -> bool:
        """Whether a step (0-based) has a JEPA loss; true for all steps of a run without views."""
        return step % self.jepa_every == 0

    def offered(self, progress: RunProgress, steps_without: int) -> Tensor:
        """Return the examples that the steps so far, but for the first ``steps_without``, have
        offered to the memory, as indices in the dataset, int64.
        """
        offered: set[int] = set()
        # From the newest epoch back: before the memory, the run may have had another dataset.
        first, count = progress.steps, progress.step_in_epoch
        for epoch in reversed(range(progress.epoch + 1)):
            first -= count
            self.sampler.set_position(epoch)
            steps = islice(self.sampler.of_all_ranks(), count)
            for step, examples in enumerate(steps, first):
                if step >= steps_without and self.has_jepa_loss(step):
                    offered.update(examples)
            if first <= steps_without or len(offered) == len(self.train):
                break
            count = self.steps_per_epoch
        return torch.tensor(self.train.indices)[sorted(offered)]

    def steps(self, progress: RunProgress, memory: RunMemory) -> Iterator[Step]:
        """Yield the remaining steps of an epoch. With a share, replayed pairs are packed into the
        same rows as new ones, so the memory must be updated before the next step is requested.
        """
        self.sampler.set_position(progress.epoch, progress.step_in_epoch)
        if not self.share:
            self._numbered.first = progress.steps
            yield from map(Step, self.loader)
            return
        for examples in self.sampler:
            pairs = [self.train[i] for i in examples]
            ids = torch.tensor([pair.example_id for pair in pairs])
            budget = self.sampler.num_replayed(progress.step_in_epoch)
            draw = memory.draw(memory.entries(ids), budget)
            pairs += _pairs_of(draw)
            batches = self._packed.pack(progress.steps, self._of_this_rank(pairs))
            yield Step(self._pinned(batches), draw)

    def pack_replayed(self, draw: ReplayBatch, step: int) -> list[PackedBatch]:
        """Pack this rank's replayed pairs, into as many micro-batches on every rank."""
        pairs = _pairs_of(draw)
        largest_share = -(-len(pairs) // self._ranks)
        num_batches = max(-(-largest_share // self._cfg.batch_size), 1)
        return self._pinned(
            self._replay_collator.split(self._of_this_rank(pairs), num_batches, step)
        )

    def _of_this_rank(self, pairs: list[Pair]) -> list[Pair]:
        return pairs[self._rank :: self._ranks]

    def _pinned(self, batches: list[PackedBatch]) -> list[PackedBatch]:
        return [batch.pin_memory() for batch in batches] if self._pins else batches


@dataclass
class _NumberedSteps(Sampler[tuple[int, list[int]]]):
    """The steps of a sampler, numbered from ``first`` on: the keys of :class:`_PackedSteps`."""

    steps: StepSampler
    first: int = 0

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return enumerate(self.steps, self.first)


@dataclass
class _PackedSteps(Dataset):
    """The packed micro-batches of each step on one rank, with views in every ``jepa_every``-th."""

    pairs: Dataset[Pair]
    collator: PairCollator
    num_batches: int
    jepa_every: int

    def pack(self, step: int, pairs: Sequence[Pair]) -> list[PackedBatch]:
        collator = self.collator
        if step % self.jepa_every:
            collator = collator.without_views()
        return collator.split(pairs, self.num_batches, step)

    def __getitem__(self, key: tuple[int, list[int]]) -> list[PackedBatch]:
        """Pack a step, given its number in the run, 0-based, and the indices of its examples."""
        step, examples = key
        return self.pack(step, [self.pairs[i] for i in examples])


def _pairs_of(draw: ReplayBatch) -> list[Pair]:
    return [Pair(i, *s) for i, s in zip(draw.example_ids, draw.segments, strict=True)]
