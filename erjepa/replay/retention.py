"""Which slot of a full memory is evicted: the paper's rule (appendix "Shared Episodic Memory"),
and three others.

Pairs are written one after the other, so a rule sees those of its own step that came before. A
rule of this file takes an :class:`Offer` and returns the slot to evict, or None to leave the
new pair out. A function of another module, named by its dotted path, reads the memory itself:

    retain(memory, example_id, candidates, *, seen, generator) -> int | None

    memory      EpisodicMemory, full: M slots in use
    example_id  of the pair that is to be written, which has no slot
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

# An example id is its origin << 32 and its number there. Origins are numbered from 0 in each
# run; those that a run inherits are below 0.
ORIGIN_BITS = 32


def origins(example_ids: Tensor) -> Tensor:
    """Where examples come from, int64, same shape as ``example_ids``."""
    return example_ids >> ORIGIN_BITS


class Offer(NamedTuple):
    """A pair for a full memory.

    Args:
        slots: of the memory, in groups.
        group, priority: of the pair.
        candidates: the groups whose slots may be evicted.
        seen: how many pairs have been offered a place among the candidates, this one included.
        generator: of the CPU; the only source of randomness.
    """

    slots: SlotGroups
    group: int
    priority: float
    candidates: Collection[int]
    seen: int
    generator: torch.Generator | None


@RETENTIONS.register("score", in_batches=True)
def score(offer: Offer) -> int | None:
    """The candidate of the lowest sigma / (1 + r), ties to the lowest slot: the paper's."""
    return offer.slots.weakest(offer.candidates)


@RETENTIONS.register("reservoir", in_batches=True, at_random=True)
def reservoir(offer: Offer) -> int | None:
    """Any candidate with equal probability, or none: every pair offered so far is kept with
    the same probability (Vitter 1985, algorithm R).
    """
    pick = torch.randint(offer.seen, (), generator=offer.generator, device="cpu")
    return offer.slots.at(int(pick), offer.candidates)


@RETENTIONS.register("balanced", in_batches=True, by_origin=True)
def balanced(offer: Offer) -> int | None:
    """The weakest candidate of the origin with the most slots, the new pair counted; of
    equally large origins the one of the lowest number. Within an origin as ``score``.
    """
    return offer.slots.weakest([_largest(offer)])


@RETENTIONS.register("surprise", in_batches=True, by_origin=True, counts_replays=False)
def surprise(offer: Offer) -> int | None:
    """As ``balanced``, but within an origin the slot of the lowest score, however often it was
    replayed, is evicted; a new pair that scores no higher is left out. So each origin keeps an
    equal number of its most surprising pairs (SuRe, arXiv:2511.22367).
    """
    largest = _largest(offer)
    slot = offer.slots.weakest([largest])
    is_outdone = largest == offer.group and offer.priority <= offer.slots.priority(slot)
    return None if is_outdone else slot


def _largest(offer: Offer) -> int:
    sizes, group = offer.slots.sizes, offer.group
    return max(offer.candidates, key=lambda g: (sizes[g] + (g == group), -g))


def priorities(scores: Tensor, replay_counts: Tensor) -> Tensor:
    """sigma / (1 + r) of slots, float32: the lowest is evicted first."""
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
    """The slots that a memory of another capacity keeps: ascending, int64, at most
    ``capacity``.

    Those are left that the ``rule`` of the new memory would leave if slots were evicted one by
    one; ``score`` stands in for a rule of another module. Ids, sigma, r and ``weights`` have shape
    [N]; a slot stands for ``weights`` offered pairs, in proportion to which ``reservoir`` draws.
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
