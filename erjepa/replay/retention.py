"""Rules that choose the slot to evict from a full memory: the paper's (appendix "Shared Episodic
Memory") and three others.

Pairs are written one after the other, so a rule sees the earlier pairs of its own step. A rule
in this file takes an :class:`Offer` and returns the slot to evict, or None to discard the new
pair. A function of another module, named by its dotted path, reads the memory itself:

    retain(memory, example_id, candidates, *, seen, generator) -> int | None

    memory      EpisodicMemory, full: M slots in use
    example_id  of the new pair
    candidates  bool mask [M]: the slots that may be evicted
    seen, generator  as in Offer
"""

from bisect import bisect_right
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from erjepa.replay.registry import RETENTIONS, Retention
from erjepa.replay.slot_groups import SlotGroups

# An example id is (origin << 32) | index within the origin. The datasets of a run are its origins
# from 0 on; inherited origins are negative.
ORIGIN_BITS = 32


def origins(example_ids: Tensor) -> Tensor:
    """Return the origins of examples, int64, same shape as ``example_ids``."""
    return example_ids >> ORIGIN_BITS


class Offer(NamedTuple):
    """A pair offered to a full memory.

    Args:
        slots: of the memory, in groups.
        group, priority: of the offered pair.
        candidates: the groups whose slots may be evicted.
        seen: number of pairs that were offered the slots of the candidates, this one included.
        generator: on the CPU; the only source of randomness.
    """

    slots: SlotGroups
    group: int
    priority: float
    candidates: Collection[int]
    seen: int
    generator: torch.Generator | None


@RETENTIONS.register("score", in_batches=True)
def score(offer: Offer) -> int | None:
    """Evict the candidate with the lowest sigma / (1 + r), ties to the lowest slot (paper)."""
    return offer.slots.weakest(offer.candidates)


@RETENTIONS.register("reservoir", in_batches=True, at_random=True)
def reservoir(offer: Offer) -> int | None:
    """Evict a uniformly random candidate or discard the new pair, so that every pair offered so far
    is kept with the same probability (Vitter 1985, algorithm R).
    """
    pick = torch.randint(offer.seen, (), generator=offer.generator, device="cpu")
    return offer.slots.at(int(pick), offer.candidates)


@RETENTIONS.register("balanced", in_batches=True, by_origin=True)
def balanced(offer: Offer) -> int | None:
    """Evict from the origin with the most slots, the new pair counted, ties to the lowest origin;
    within the origin, the slot that ``score`` evicts.
    """
    return offer.slots.weakest([_largest(offer)])


@RETENTIONS.register("surprise", in_batches=True, by_origin=True, counts_replays=False)
def surprise(offer: Offer) -> int | None:
    """Evict from the same origin as ``balanced``, but the slot with the lowest score, however often
    it was replayed; a new pair of that origin that scores no higher is discarded. Each origin thus
    keeps an equal number of its most surprising pairs (SuRe, arXiv:2511.22367).
    """
    largest = _largest(offer)
    slot = offer.slots.weakest([largest])
    is_outdone = largest == offer.group and offer.priority <= offer.slots.priority(slot)
    return None if is_outdone else slot


def _largest(offer: Offer) -> int:
    sizes, group = offer.slots.sizes, offer.group
    return max(offer.candidates, key=lambda g: (sizes[g] + (g == group), -g))


def priorities(scores: Tensor, replay_counts: Tensor) -> Tensor:
    """Return sigma / (1 + r) of slots, float32; the lowest is evicted first."""
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
    """Return the slots to keep in a memory of another capacity: ascending, int64, at most
    ``capacity``.

    The result is that of evicting slots one by one by ``rule``; ``score`` replaces rules of other
    modules. Ids, sigma, r and ``weights`` have shape [N]; ``reservoir`` draws in proportion to
    ``weights``, the number of offered pairs that each slot represents.
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
    limit = bisect_right(
        range(capacity + 1), capacity, key=lambda n: int(sizes.clamp(max=n).sum())
    )
    quotas = sizes.clamp(max=limit - 1)
    left = capacity - int(quotas.sum())
    quotas[(sizes >= limit).nonzero().flatten().flip(0)[:left]] += 1
    kept = []
    for name, quota in zip(names, quotas.tolist(), strict=True):
        members = (of_slot == name).nonzero().flatten()
        kept.append(members[_strongest(scores[members], replay_counts[members], quota)])
    return torch.cat(kept).sort().values


def _strongest(scores: Tensor, replay_counts: Tensor, capacity: int) -> Tensor:
    weakest_first = priorities(scores, replay_counts).sort(stable=True).indices
    return weakest_first[max(0, len(scores) - capacity) :].sort().values
