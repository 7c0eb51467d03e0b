"""The steps of a run, as a rank runs them: micro-batches of new pairs and of replayed ones."""

from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from erjepa.configs import Config
from erjepa.datasets import Pair, Pairs, StepSampler, require_turns
from erjepa.packing import PackedBatch, PairCollator
from erjepa.replay import ReplayBatch
from erjepa.training.run.data import (
    PairCollators,
    fitting_pairs,
    mixture_of,
    split_pairs,
)
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.progress import RunProgress
from erjepa.training.run.signals import leave_signals_to_parent


class Step(NamedTuple):
    """What a rank runs in a step."""

    batches: list[PackedBatch]
    draw: ReplayBatch | None = (
        None  # replayed pairs in the batches, which follow the new ones
    )
    checksum: int = 0  # of the draw, see :meth:`EpisodicReplay.checksum`


class StepExamples(NamedTuple):
    """What a rank has of one step of the run, 0-based: examples by their place, or as pairs."""

    step: int
    examples: list


class TrainingPairs:
    """The pairs that a run trains on, dealt into steps; of this rank.

    Args:
        dataset: all pairs, of which those that fit are kept and some held out.
        collators: pack them.
        num_positions: of the model.
        jepa_every: the first of so many steps has a JEPA loss.
        share: fraction of a step's pairs that are replayed.

    Attributes:
        sampler: which pairs a step has.
        loader: yields the packed micro-batches of a step, ``list[PackedBatch]``; with a share
            all new pairs of the step, :class:`StepExamples`.
        held_out: places in the dataset of the pairs to validate on.
    """

    def __init__(
        self,
        cfg: Config,
        dataset: Pairs,
        collators: PairCollators,
        *,
        num_positions: int,
        jepa_every: int,
        share: float = 0.0,
        device: torch.device,
    ) -> None:
        if cfg.train_on_turns == "all":
            require_turns(dataset)
        fitting = fitting_pairs(
            dataset,
            collators.new,
            max_seq_len=cfg.max_seq_len,
            num_positions=num_positions,
            skip_too_long=cfg.skip_too_long,
        )
        train, self.held_out = split_pairs(dataset, fitting, cfg.validation)
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
        )
        self._pack = _StepPacker(
            collators.new, cfg.gradient_accumulation_steps, jepa_every
        )
        self._share = share
        self._replay_collator = collators.replay
        self._batch_size = cfg.batch_size
        self._max_steps_per_epoch = cfg.max_steps_per_epoch
        self._pins = device.type == "cuda"
        self.loader: DataLoader[Pair] = DataLoader(
            # Of the pairs alone, which processes that are spawned can be given too.
            _StepSubset(cast(Dataset[Pair], dataset.pairs), train),
            batch_sampler=_NumberedSteps(self.sampler),  # type: ignore[arg-type]
            collate_fn=_unpacked if share else self._pack,  # type: ignore[arg-type]
            num_workers=cfg.num_workers,
            worker_init_fn=leave_signals_to_parent,
            pin_memory=self._pins and not share,
            # Else every new iterator would draw from the state that LoRA dropout uses.
            generator=torch.Generator(),
        )

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        steps = self.sampler.steps_per_epoch
        return min(steps, self._max_steps_per_epoch or steps)

    def has_jepa_loss(self, step: int) -> bool:
        """Whether step ``step`` (0-based) of the run has the views that the objective has, if any."""
        return self._pack.has_jepa_loss(step)

    def steps(self, run: RunProgress, memory: RunMemory) -> Iterator[Step]:
        """The rest of an epoch; each step is to be taken once the memory has what the last one
        wrote. With a share, replayed pairs are packed into the same rows as new ones.
        """
        self.sampler.set_position(run.epoch, run.step_in_epoch, run.steps)
        if not self._share:
            yield from map(Step, self.loader)
            return
        for place, (step, new) in enumerate(self.loader, run.step_in_epoch):
            draw, together, checksum = None, new, 0
            if self.has_jepa_loss(step):
                entries = memory.entries(
                    torch.tensor([pair.example_id for pair in new])
                )
                draw, checksum = memory.draw(entries, self.sampler.num_replayed(place))
                together = [*new, *_pairs_of(draw)]
            batches = self._pack(StepExamples(step, self._mine(together)))
            yield Step(self._pinned(batches), draw, checksum)

    def pack_replayed(self, draw: ReplayBatch, step: int) -> list[PackedBatch]:
        """This rank's share of replayed pairs, in as many micro-batches as every rank's."""
        pairs = _pairs_of(draw)
        largest_share = -(-len(pairs) // self._ranks)
        num_batches = max(-(-largest_share // self._batch_size), 1)
        return self._pinned(
            self._replay_collator.split(self._mine(pairs), num_batches, step)
        )

    def _mine(self, pairs: list[Pair]) -> list[Pair]:
        return pairs[self._rank :: self._ranks]

    def _pinned(self, batches: list[PackedBatch]) -> list[PackedBatch]:
        return [batch.pin_memory() for batch in batches] if self._pins else batches


class _NumberedSteps(Sampler[StepExamples]):
    """The steps of a sampler, each with how many steps of the run come before it."""

    def __init__(self, sampler: StepSampler) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[StepExamples]:
        for step, examples in enumerate(self._sampler, start=self._sampler.steps_done):
            yield StepExamples(step, examples)


class _StepSubset(Subset):
    """Some pairs of a dataset, handed out by the step."""

    def __getitems__(self, step: StepExamples) -> StepExamples:  # type: ignore[override]
        return StepExamples(step.step, [self[i] for i in step.examples])


class _StepPacker:
    """Packs what a rank has of a step, with views where the step has a JEPA loss."""

    def __init__(
        self, collator: PairCollator, num_batches: int, jepa_every: int
    ) -> None:
        self._collator = collator
        self._plain = collator.without_views()
        self._num_batches = num_batches
        self._jepa_every = jepa_every

    def has_jepa_loss(self, step: int) -> bool:
        return step % self._jepa_every == 0 or self._collator.views == "none"

    def __call__(self, step: StepExamples) -> list[PackedBatch]:
        collator = self._collator if self.has_jepa_loss(step.step) else self._plain
        return collator.split(step.examples, self._num_batches, step.step)


def _unpacked(step: StepExamples) -> StepExamples:
    return step


def _pairs_of(draw: ReplayBatch) -> list[Pair]:
    return [Pair(i, *s) for i, s in zip(draw.example_ids, draw.segments, strict=True)]
