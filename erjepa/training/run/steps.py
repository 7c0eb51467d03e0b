"""What a rank runs in a step: micro-batches of new pairs and of replayed ones."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from erjepa.datasets import Pair
from erjepa.packing import PackedBatch, PairCollator
from erjepa.replay import ReplayBatch
from erjepa.training.run.data import StepExamples, TrainingPairs
from erjepa.training.run.memory import RunMemory


class Step(NamedTuple):
    """What a rank runs in a step.

    Args:
        batches: its micro-batches.
        draw: the replayed pairs among theirs, which follow the new ones.
        checksum: of the draw, see :meth:`EpisodicReplay.checksum`.
    """

    batches: list[PackedBatch]
    draw: ReplayBatch | None = None
    checksum: int = 0


def steps_of(
    pairs: TrainingPairs,
    memory: RunMemory,
    *,
    start: int,
    pin_memory: bool,
) -> Iterator[Step]:
    """The steps of an epoch; each may be taken once the memory has what the last one wrote.

    Args:
        memory: what replayed pairs are drawn from; its share of a step runs with new pairs.
        start: step of the epoch to start at.
        pin_memory: for copies to a device.

    Yields:
        With a share, new and replayed pairs packed into the same rows.
    """
    if not memory.share:
        yield from map(Step, pairs.loader)
        return
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for place, (step, new) in enumerate(pairs.loader, start):
        draw, together, checksum = None, new, 0
        if pairs.packer.has_jepa_loss(step):
            entries = memory.entries(torch.tensor([pair.example_id for pair in new]))
            draw, checksum = memory.draw(entries, pairs.sampler.num_replayed(place))
            together = [*new, *_pairs_of(draw)]
        batches = pairs.packer(StepExamples(step, together[rank::ranks]))
        pinned = [b.pin_memory() if pin_memory else b for b in batches]
        yield Step(pinned, draw, checksum)


def share_of_replay(
    draw: ReplayBatch,
    collator: PairCollator,
    batch_size: int,
    *,
    step: int,
    pin_memory: bool,
) -> list[PackedBatch]:
    """This rank's share of the replayed pairs, in as many micro-batches as every rank's.

    Args:
        draw: the replayed pairs of the step.
        collator: packs them.
        batch_size: most pairs of a micro-batch.
        step: of the run, for what is drawn anew at each.
        pin_memory: for copies to a device.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = _pairs_of(draw)
    largest_share = -(-len(pairs) // ranks)
    batches = collator.split(
        pairs[rank::ranks], max(-(-largest_share // batch_size), 1), step
    )
    return [batch.pin_memory() if pin_memory else batch for batch in batches]


def _pairs_of(draw: ReplayBatch) -> list[Pair]:
    return [Pair(i, *s) for i, s in zip(draw.example_ids, draw.segments, strict=True)]
