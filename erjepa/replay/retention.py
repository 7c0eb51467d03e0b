"""Which slot of a full memory makes room for a new pair: the paper's rule (appendix "Shared
Episodic Memory"), and three others.

Pairs are written one after the other, so a rule sees those of its own step that came before.
The rules of this file are asked for a batch of writes at a time, see ``placement.py``:

    rule(slots, group, priority, candidates, *, seen, generator) -> int | None

    slots       SlotGroups: the slots of the full memory, in groups
    group       of the pair that is to be written, which has no slot
    priority    of that pair
    candidates  the groups whose slots may be evicted
    seen        how many pairs have been offered a place among the candidates, this one included
    generator   CPU generator; the only source of randomness

They return the slot to evict, or None to leave the new pair out. A function of another module
takes their place by its dotted path. It is asked for each pair, and reads the memory itself:

    retain(memory, example_id, candidates, *, seen, generator) -> int | None

    memory      EpisodicMemory, full: M slots in use
    example_id  of the pair that is to be written, which has no slot
    candidates  bool mask [M]: the slots that may be evicted
"""

from bisect import bisect_right
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from erjepa.replay.registry import RETENTIONS, Retention

if TYPE_CHECKING:
    from erjepa.replay.placement import SlotGroups

# An example id is its origin << 32 and its number there. Origins are numbered from 0 in each
# run; those that a run inherits are below 0.
ORIGIN_BITS = 32


def origins(example_ids: Tensor) -> Tensor:
    """Where examples come from, int64, same shape as ``example_ids``."""
    return example_ids >> ORIGIN_BITS


@RETENTIONS.register("score", in_batches=True)
def score(
    slots: "SlotGroups",
    group: int,
    priority: float,
    candidates: Collection[int],
    *,
    seen: int,
    generator: torch.Generator | None,
) -> int | None:
    """The candidate of the lowest sigma / (1 + r), ties to the lowest slot: the paper's."""
    return slots.weakest(candidates)


@RETENTIONS.register("reservoir", in_batches=True, at_random=True)
def reservoir(
    slots: "SlotGroups",
    group: int,
    priority: float,
    candidates: Collection[int],
    *,
    seen: int,
    generator: torch.Generator | None,
) -> int | None:
    """Any candidate with equal probability, or none: every pair offered so far is kept with
    the same probability (Vitter 1985, algorithm R).
    """
    pick = int(torch.randint(seen, (), generator=generator, device="cpu"))
    return slots.at(pick, candidates)


@RETENTIONS.register("balanced", in_batches=True, by_origin=True)
def balanced(
    slots: "SlotGroups",
    group: int,
    priority: float,
    candidates: Collection[int],
    *,
    seen: int,
    generator: torch.Generator | None,
) -> int | None:
    """The weakest candidate of the origin with the most slots, the new pair counted; of
    equally large origins the one of the lowest number. Within an origin as ``score``.
    """
    return slots.weakest([_largest(slots, group, candidates)])


@RETENTIONS.register("surprise", in_batches=True, by_origin=True, counts_replays=False)
def surprise(
    slots: "SlotGroups",
    group: int,
    priority: float,
    candidates: Collection[int],
    *,
    seen: int,
    generator: torch.Generator | None,
) -> int | None:
    """As ``balanced``, but within an origin the slot of the lowest score, however often it was
    replayed, is evicted; a new pair that scores no higher is left out. So each origin keeps an
    equal number of its most surprising pairs (SuRe, arXiv:2511.22367).
    """
    largest = _largest(slots, group, candidates)
    slot = slots.weakest([largest])
    is_outdone = largest == group and priority <= slots.priority(slot)
    return None if is_outdone else slot


def _largest(slots: "SlotGroups", group: int, candidates: Collection[int]) -> int:
    return max(candidates, key=lambda g: (slots.sizes[g] + (g == group), -g))


def priorities(scores: Tensor, replay_counts: Tensor) -> Tensor:
    """sigma / (1 + r) of slots, float32: the lowest is given up first."""
    return scores / (1 + replay_counts)


SCORE = RETENTIONS.find("score")


def retained(
    rule: Retention,
    example_ids: Tensor,
    scores: Tensor,
    replay_counts: Tensor,
    weights: Tensor,
    capacity: int,
    generator: torch.Generator,
) -> Tensor:
    """The slots that a memory of another capacity takes over.

    Those are left that the rule would leave if slots were given up one by one; a rule of
    another module has no say in this, and ``score`` stands in for it.

    Args:
        rule (Retention): of the memory that takes over.
        example_ids (Tensor): of the slots, int64, shape [N].
        scores (Tensor): sigma, float32, shape [N].
        replay_counts (Tensor): r, shape [N].
        weights (Tensor): how many pairs that were offered each slot stands for, float32, shape
            [N]; ``reservoir`` draws in proportion.
        capacity (int): how many may stay.
        generator (torch.Generator): of the CPU, for ``reservoir``.

    Returns:
        Tensor: ascending slots, int64, at most ``capacity``.
    """
    if len(scores) <= capacity:
        return torch.arange(len(scores))
    if rule.at_random:
        return torch.multinomial(weights, capacity, generator=generator).sort().values
    if not rule.counts_replays:
        replay_counts = torch.zeros_like(replay_counts)
    if not rule.by_origin:
        return _strongest(scores, replay_counts, capacity)
    of_slot = origins(example_ids)
    names, sizes = of_slot.unique(return_counts=True)
    level = bisect_right(
        range(capacity + 1), capacity, key=lambda n: int(sizes.clamp(max=n).sum())
    )
    quotas = sizes.clamp(max=level - 1)
    left = capacity - int(quotas.sum())
    quotas[(sizes >= level).nonzero().flatten().flip(0)[:left]] += 1
    kept = []
    for name, quota in zip(names, quotas.tolist(), strict=True):
        own = (of_slot == name).nonzero().flatten()
        kept.append(own[_strongest(scores[own], replay_counts[own], quota)])
    return torch.cat(kept).sort().values


def _strongest(scores: Tensor, replay_counts: Tensor, capacity: int) -> Tensor:
    weakest_first = priorities(scores, replay_counts).sort(stable=True).indices
    return weakest_first[max(0, len(scores) - capacity) :].sort().values
