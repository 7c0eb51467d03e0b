"""Scores and addresses of stored pairs under the current model."""

from collections.abc import Iterator
from itertools import islice

import torch
import torch.distributed as dist

from erjepa.datasets import Pair
from erjepa.replay import EpisodicReplay
from erjepa.replay.segments import Segments
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.step.passes import Passes, PassResult


def recompute(
    replay: EpisodicReplay,
    run: PreparedRun,
    passes: Passes,
    *,
    scores: bool,
    addresses: bool,
) -> None:
    """Recompute scores, addresses or both of all slots, where slots have addresses."""
    memory = replay.memory
    table = memory.address_table if addresses else None
    if not scores and table is None:
        return
    segments = (memory.segments([slot])[0] for slot in range(len(memory)))
    for slots, result in measured(segments, run, passes):
        at = torch.tensor(slots, device=memory.device)
        if scores:
            memory.scores[at] = result.scores(run.cfg.replay.score)
        if table is not None:
            table.put(at, table.encode(result.source))


def measured(
    segments: Iterator[Segments], run: PreparedRun, passes: Passes
) -> Iterator[tuple[range, PassResult]]:
    """Yield the numbers of as many pairs as a step has, and their result without dropout."""
    cfg, collator, model = run.cfg, run.collators.new, run.model
    was_training = model.training
    model.eval()
    world_size, rank = dist.get_world_size(), dist.get_rank()
    num_batches = cfg.gradient_accumulation_steps
    step = cfg.batch_size * num_batches * world_size
    numbered = (Pair(number, *cut) for number, cut in enumerate(segments))
    while pairs := list(islice(numbered, step)):
        batches = collator.split(pairs[rank::world_size], num_batches)
        result = passes.measure(batches, passes.totals(batches))
        yield range(pairs[0].example_id, pairs[-1].example_id + 1), result
    model.train(was_training)
