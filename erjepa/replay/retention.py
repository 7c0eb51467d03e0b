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
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from erjepa.replay.addresses import top_k_descending
from erjepa.replay.registry import RETENTIONS, Retention

# An example id is (origin << 32) | index within the origin. The datasets of a run are its origins
# from 0 on; inherited origins are negative.
ORIGIN_BITS = 32
EXAMPLE_MASK = (1 << ORIGIN_BITS) - 1


def origins(example_ids: Tensor) -> Tensor:
    """Return the origins of examples, int64, same shape as ``example_ids``."""
    return example_ids >> ORIGIN_BITS


class Slots:
    """The slots in use while a batch of writes is placed: their priorities and groups, on the CPU.

    Args:
        priorities: of N slots, float32 [N].
        groups: of the slots, int64 [N]: their origins or, for rules that ignore the origin, -1 for
            inherited slots and 0 for those of the run; ``None``: all are 0.
        num_writes: maximum number of slots that the batch adds.

    Attributes:
        sizes: number of slots of each group.
    """

    def __init__(
        self, priorities: Tensor, groups: Tensor | None, num_writes: int
    ) -> None:
        self._size = len(priorities)
        self.sizes = Counter({0: self._size})
        if groups is not None:
            groups = groups.cpu()  # one synchronization with the device
            names, counts = groups.unique(return_counts=True)
            sizes = zip(names.tolist(), counts.tolist(), strict=True)
            self.sizes = Counter(dict(sizes))
        self._priorities = torch.empty(self._size + num_writes, device="cpu")
        self._priorities[: self._size] = priorities
        self._groups = torch.zeros(
            self._size + num_writes, dtype=torch.int64, device="cpu"
        )
        if groups is not None:
            self._groups[: self._size] = groups
        self._num_writes = num_writes
        self._weak: dict[int, dict[int, float]] = {}

    def put(self, slot: int, group: int, priority: float) -> None:
        """Record that a pair of the batch is written to ``slot``."""
        if slot < self._size:
            before = int(self._groups[slot])
            self.sizes[before] -= 1
            self._weak.get(before, {}).pop(slot, None)
        self._size = max(self._size, slot + 1)
        self.sizes[group] += 1
        self._groups[slot], self._priorities[slot] = group, priority
        if group in self._weak:
            self._weak[group][slot] = priority

    def priority(self, slot: int) -> float:
        return self._priorities[slot].item()

    def members(self, groups: Collection[int]) -> Tensor:
        """Return which slots are in one of ``groups``, bool [N]."""
        wanted = torch.tensor(list(groups), device="cpu")
        return torch.isin(self._groups[: self._size], wanted)

    def at(self, place: int, groups: Collection[int]) -> int | None:
        """Return slot number ``place`` of ``groups``, in ascending order, if there are so many."""
        size = sum(self.sizes[group] for group in groups)
        if place >= size:
            return None
        if size == self._size:
            return place
        return int(self.members(groups).nonzero()[place])

    def weakest(self, groups: Collection[int]) -> int:
        """Return the slot with the lowest priority in ``groups``, ties to the lowest slot."""
        slots = [entry for group in groups for entry in self._weakest(group).items()]
        return min((priority, slot) for slot, priority in slots)[1]

    def _weakest(self, group: int) -> dict[int, float]:
        """Return the priorities of slots of a group, among them the weakest one.

        Those of the B weakest suffice: each write changes at most one of them, so before any
        write one is unchanged, and no other slot is weaker than that one.
        """
        if group not in self._weak:
            is_outside = self._groups[: self._size] != group
            strength = -self._priorities[: self._size].masked_fill(
                is_outside, torch.inf
            )
            count = min(self._num_writes, self.sizes[group])
            slots = top_k_descending(strength[None], count)[0]
            priorities = self._priorities[slots].tolist()
            self._weak[group] = dict(zip(slots.tolist(), priorities, strict=True))
        return self._weak[group]


class Offer(NamedTuple):
    """A pair offered to a full memory.

    Args:
        slots: those of the memory.
        group, priority: of the offered pair.
        candidates: the groups whose slots may be evicted.
        seen: number of pairs that were offered the slots of the candidates, this one included.
        generator: on the CPU; the only source of randomness.
    """

    slots: Slots
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


def drawn_numbers(slots: int, offered: int, generator: torch.Generator) -> Tensor:
    """Return a random number for each slot of a uniform sample of ``offered`` pairs, float64
    [slots]: if every offered pair drew one, the sample would be those with the smallest. The
    pairs of several samples that have the smallest are thus a uniform sample of all.
    """
    # The smallest of exponential variables in ascending order (Renyi 1953).
    gaps = torch.empty(slots, dtype=torch.float64).exponential_(generator=generator)
    smallest = (gaps / (max(offered, slots) - torch.arange(slots))).cumsum(0)
    return smallest[torch.randperm(slots, generator=generator)]


def retained(
    rule: Retention,
    example_ids: Tensor,
    scores: Tensor,
    replay_counts: Tensor,
    drawn: Tensor,
    capacity: int,
) -> Tensor:
    """Return the slots to keep in a memory of another capacity: ascending, int64, at most
    ``capacity``.

    The result is that of evicting slots one by one by ``rule``; ``score`` replaces rules of other
    modules. Ids, sigma, r and ``drawn`` have shape [N]; ``reservoir`` keeps the slots with the
    smallest of :func:`drawn_numbers`.
    """
    if len(scores) <= capacity:
        return torch.arange(len(scores))
    if rule.at_random:
        return drawn.topk(capacity, largest=False).indices.sort().values
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
