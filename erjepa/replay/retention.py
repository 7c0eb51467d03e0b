"""Rules that choose the slot to evict from a full memory: the paper's (appendix "Shared Episodic
Memory") and four others.

Pairs are written one after the other, so a rule sees the earlier pairs of its own step. A rule
in this file takes an :class:`Offer` and returns the slot to evict, or None to discard the new
pair. A function of another module, named by its dotted path, reads the memory itself:

    retain(memory, example_id, candidates, *, seen, generator) -> int | None

    memory      EpisodicMemory, full: M slots in use
    example_id  of the new pair
    candidates  bool mask [M]: the slots that may be evicted
    seen, generator  as in Offer
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import torch
from torch import Tensor

from erjepa.replay.addresses import top_k_descending
from erjepa.replay.registry import RETENTIONS, Retention
from erjepa.replay.segments import Segments

# An example id is (origin << 32) | index in the datasets of the run, one after the other. These are
# its origins from 0 on; inherited origins are negative.
ORIGIN_BITS = 32
EXAMPLE_MASK = (1 << ORIGIN_BITS) - 1


def origins(example_ids: Tensor) -> Tensor:
    """Return the origins of examples, int64, same shape as ``example_ids``."""
    return example_ids >> ORIGIN_BITS


class Slots:
    """The priorities and groups of the slots in use, on the CPU.

    Groups are origins, or :func:`origins_and_targets`; for rules that ignore both, -1 for inherited
    slots and 0 for those of the run.

    Args:
        capacity: number of slots M.

    Attributes:
        sizes: number of slots of each group that has any.
        num_inherited: number of slots of inherited groups.
    """

    def __init__(self, capacity: int) -> None:
        self._priorities = torch.empty(capacity, device="cpu")
        self._groups = torch.empty(capacity, dtype=torch.int64, device="cpu")
        self.assign(self._groups[:0])

    def assign(self, groups: Tensor) -> None:
        """Replace the slots in use by slots 0 .. N - 1 of ``groups`` [N]."""
        self._size = len(groups)
        self._groups[: self._size] = groups
        names, counts = self._groups[: self._size].unique(return_counts=True)
        self.sizes = Counter(dict(zip(names.tolist(), counts.tolist(), strict=True)))
        self.num_inherited = sum(n for group, n in self.sizes.items() if group < 0)
        self._largest: _LargestGroups | None = None

    def start_batch(self, priorities: Tensor, num_writes: int) -> None:
        """Set the priorities of the N slots in use, before at most ``num_writes`` calls of
        :meth:`put`.
        """
        self._priorities[: self._size] = priorities
        self._num_writes = num_writes
        self._weak: dict[int, dict[int, float]] = {}

    def put(self, slot: int, group: int, priority: float) -> None:
        """Record that a pair of the batch is written to ``slot``, at most the first free one."""
        changed = {group}
        if slot < self._size:
            before = self.group(slot)
            if (before, self.priority(slot)) == (group, priority):
                return
            self._resize(before, -1)
            self._weak.get(before, {}).pop(slot, None)
            changed.add(before)
        self._size = max(self._size, slot + 1)
        self._groups[slot], self._priorities[slot] = group, priority
        self._resize(group, 1)
        if group in self._weak:
            self._weak[group][slot] = priority
        if self._largest is not None:
            self._largest.put(slot, changed)

    def _resize(self, group: int, by: int) -> None:
        self.sizes[group] += by
        if not self.sizes[group]:
            del self.sizes[group]
        self.num_inherited += by * (group < 0)

    def candidates(self, only_new: bool) -> list[int]:
        """Return the groups, all or without the inherited ones."""
        return [group for group in self.sizes if group >= 0 or not only_new]

    def group(self, slot: int) -> int:
        return int(self._groups[slot])

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

    def weakest_of_largest(self, group: int, only_new: bool) -> tuple[int, bool]:
        """Return the weakest slot of the groups with the most slots, a further slot of ``group``
        counted, and whether ``group`` is one of these groups. With ``only_new``, inherited groups
        do not count. Priorities may only change by :meth:`put`.
        """
        if self._largest is None or self._largest.only_new != only_new:
            columns = self._groups[: self._size], self._priorities[: self._size]
            self._largest = _LargestGroups(self, *columns, only_new)
        most, weakest = self._largest.find()
        own = self.sizes[group] + 1
        if own >= most and own > 1:
            of_own = self._largest.weakest(group)
            weakest = of_own if own > most else min(weakest, of_own)
        return weakest[1], own >= most

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


class _LargestGroups:
    """Finds the weakest slot of the groups with the most slots, in O(log N) per write.

    Heaps hold a (priority, slot) of each slot of a group, and of the weakest slot of each group of
    a size. An entry that is outdated is dropped when it is the first of its heap.

    Args:
        slots: N slots in use.
        groups, priorities: of these, [N].
        only_new: whether to leave out inherited groups.
    """

    def __init__(
        self, slots: Slots, groups: Tensor, priorities: Tensor, only_new: bool
    ) -> None:
        self._slots, self.only_new = slots, only_new
        self._of_group: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self._of_size: dict[int, list[tuple[float, int]]] = defaultdict(list)
        columns = zip(groups.tolist(), priorities.tolist(), strict=True)
        for slot, (group, priority) in enumerate(columns):
            if group >= 0 or not only_new:
                self._of_group[group].append((priority, slot))
        for heap in self._of_group.values():
            heapify(heap)
            self._of_size[len(heap)].append(heap[0])
        for heap in self._of_size.values():
            heapify(heap)

    def put(self, slot: int, changed: Collection[int]) -> None:
        """Follow :meth:`Slots.put`; ``changed`` are the groups of the slot before and after it."""
        entry = self._slots.priority(slot), slot
        heappush(self._of_group[self._slots.group(slot)], entry)
        for group in changed:
            if size := self._slots.sizes[group]:
                heappush(self._of_size[size], self.weakest(group))
            else:
                del self._of_group[group]

    def weakest(self, group: int) -> tuple[float, int]:
        """Return the lowest priority in a group that has slots, and its lowest slot."""
        heap, slots = self._of_group[group], self._slots
        while True:
            priority, slot = heap[0]
            if (slots.group(slot), slots.priority(slot)) == (group, priority):
                return heap[0]
            heappop(heap)

    def find(self) -> tuple[int, tuple[float, int]]:
        """Return the size of the largest groups, and their weakest slot with its priority."""
        while True:
            size = max(self._of_size)
            heap = self._of_size[size]
            while heap:
                group = self._slots.group(heap[0][1])
                if self._slots.sizes[group] == size and self.weakest(group) == heap[0]:
                    return size, heap[0]
                heappop(heap)
            del self._of_size[size]


class Offer(NamedTuple):
    """A pair offered to a full memory.

    Args:
        slots: those of the memory.
        group, priority: of the offered pair.
        spares_inherited: whether slots of inherited groups may not be evicted.
        seen: number of pairs that were offered the slots of the candidates, this one included.
        generator: on the CPU; the only source of randomness.
    """

    slots: Slots
    group: int
    priority: float
    spares_inherited: bool
    seen: int
    generator: torch.Generator | None

    @property
    def candidates(self) -> list[int]:
        """The groups whose slots may be evicted."""
        return self.slots.candidates(self.spares_inherited)


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


@RETENTIONS.register(
    "stratified",
    in_batches=True,
    by_target=True,
    counts_replays=False,
    at_random=True,
)
def stratified(offer: Offer) -> int | None:
    """Evict a random pair of the targets with the most slots, the new pair counted, or discard the
    new pair. Targets thus keep equally many pairs each, as far as they have them; if all targets
    differ, every pair is kept with the same probability. This is class-balancing reservoir
    sampling (Chrysakis and Moens 2020), with the random number of each pair in place of stored
    counts of the targets. Equal targets of two origins count as two.
    """
    slot, is_own = offer.slots.weakest_of_largest(offer.group, offer.spares_inherited)
    is_outdone = is_own and offer.priority <= offer.slots.priority(slot)
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


def marks(pairs: Iterable[Segments], seed: int) -> Tensor:
    """Return two numbers for each pair, int64 [N, 2]: one for its target, which is the last
    segment, below 2^32; and a random one, below 2^24, the same for the same pair and seed.
    """
    salt = seed.to_bytes(8, "little")
    rows = [(_digest(pair[-1:], 4), _digest(pair, 3, salt)) for pair in pairs]
    return torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, 2)


def origins_and_targets(example_ids: Tensor, of_pairs: Tensor) -> Tensor:
    """Return a number for the origin and target of each pair, int64 [N]; negative if inherited.
    ``of_pairs`` are the :func:`marks`.
    """
    return origins(example_ids.cpu()) << ORIGIN_BITS | of_pairs[:, 0]


def _digest(segments: Segments, size: int, salt: bytes = b"") -> int:
    digest = blake2b(digest_size=size, salt=salt)
    for segment in segments:
        digest.update(array("i", segment))
    return int.from_bytes(digest.digest(), "little")


def retained(
    rule: Retention,
    groups: Tensor,
    scores: Tensor,
    replay_counts: Tensor,
    drawn: Tensor,
    capacity: int,
) -> Tensor:
    """Return the slots to keep in a memory of another capacity: ascending, int64, at most
    ``capacity``.

    The result is that of evicting slots one by one by ``rule``; ``score`` replaces rules of other
    modules. All tensors have shape [N]; rules at random keep the slots with the smallest of
    ``drawn``, the :func:`drawn_numbers`.

    Args:
        groups: origins, or :func:`origins_and_targets`; not read if the rule ignores both.
    """
    if not rule.counts_replays:
        replay_counts = torch.zeros_like(replay_counts)
    strength = -drawn if rule.at_random else priorities(scores, replay_counts)
    best_first = strength.sort(stable=True).indices.flip(0)
    if not (rule.by_origin or rule.by_target):
        groups = torch.zeros_like(groups)
    if rule.by_origin:  # of origins with as many slots, the lowest gives way first
        best_first = best_first[(-groups[best_first]).argsort(stable=True)]
    of_each = groups[best_first]
    by_group = of_each.argsort(stable=True)
    sizes = of_each.unique(return_counts=True)[1]
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    rank = torch.empty_like(by_group)  # of a slot in its group
    rank[by_group] = torch.arange(len(by_group)) - starts
    kept = best_first[rank.argsort(stable=True)[:capacity]]
    return kept.sort().values
