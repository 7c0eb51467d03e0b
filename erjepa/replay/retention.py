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
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
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

    def start_batch(self, priorities: Tensor, groups: Sequence[int]) -> None:
        """Set the priorities of the N slots in use, before :meth:`put` is called at most once for
        each of B pairs, which are of ``groups``.
        """
        self._priorities[: self._size] = priorities
        self._of_batch = groups
        self._weak: dict[int, dict[int, float]] = {}

    def put(self, slot: int, group: int, priority: float) -> None:
        """Record that a pair of the batch is written to ``slot``, at most the first free one."""
        if slot < self._size:
            before = int(self._groups[slot])
            self._resize(before, -1)
            self._weak.get(before, {}).pop(slot, None)
        self._size = max(self._size, slot + 1)
        self._groups[slot], self._priorities[slot] = group, priority
        self._resize(group, 1)
        if group in self._weak:
            self._weak[group][slot] = priority

    def _resize(self, group: int, by: int) -> None:
        self.sizes[group] += by
        if not self.sizes[group]:
            del self.sizes[group]
        self.num_inherited += by * (group < 0)

    def priority(self, slot: int) -> float:
        return self._priorities[slot].item()

    def evictable(self, spares_inherited: bool) -> Tensor:
        """Return which slots may be evicted, bool [N]."""
        is_new = self._groups[: self._size] >= 0
        return is_new if spares_inherited else torch.ones_like(is_new)

    def at(self, place: int, spares_inherited: bool) -> int | None:
        """Return evictable slot number ``place``, in ascending order, if there are so many."""
        num_spared = self.num_inherited if spares_inherited else 0
        if place >= self._size - num_spared:
            return None
        if not num_spared:
            return place
        return int(self.evictable(spares_inherited).nonzero()[place])

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
            count = min(len(self._of_batch), self.sizes[group])
            slots = top_k_descending(strength[None], count)[0]
            self._weak[group] = self._entries(slots)
        return self._weak[group]

    def large(self) -> list[int]:
        """Return a few groups, among them all that lose a slot in this batch if each write takes
        the weakest slot of the largest groups. Priorities must be whole numbers below 2^24.
        """
        if not self._weak:
            self._weak = self._weak_of_large()
        return list(self._weak)

    def _weak_of_large(self) -> dict[int, dict[int, float]]:
        """Return the B weakest slots, with their priorities, of each group of :meth:`large`.

        By size, and by weakest slot if sizes are equal, the first B groups suffice, and those of
        the batch: a write takes a slot from one group only, and no other groups grow. Inherited
        groups may be spared, so there are B of these and B of the others.
        """
        num_writes = len(self._of_batch)
        groups = self._groups[: self._size]
        priorities = self._priorities[: self._size]
        # By group, in each the weakest slot first; whole numbers are sorted fast.
        order = priorities.int().argsort(stable=True)
        of_each, by_group = groups[order].sort(stable=True)
        order = order[by_group]
        names, sizes = of_each.unique_consecutive(return_counts=True)
        starts = sizes.cumsum(0) - sizes
        weakest = order[starts]
        rank = torch.zeros(self._size, dtype=torch.float64, device="cpu")
        rank[weakest] = sizes - priorities[weakest].double() / 2**24
        by_part = torch.stack([rank * (groups < 0), rank * (groups >= 0)])
        first = top_k_descending(by_part, min(num_writes, self._size)).flatten()
        of_batch = torch.tensor(self._of_batch, device="cpu")
        found = torch.searchsorted(names, torch.cat([groups[first], of_batch]))
        at = found.clamp(max=len(names) - 1).unique()
        weak: dict[int, dict[int, float]] = {group: {} for group in self._of_batch}
        for group, start, size in torch.stack([names, starts, sizes])[:, at].T.tolist():
            slots = order[start : start + min(num_writes, size)]
            weak[group] = self._entries(slots)
        return weak

    def _entries(self, slots: Tensor) -> dict[int, float]:
        priorities = self._priorities[slots].tolist()
        return dict(zip(slots.tolist(), priorities, strict=True))


class Offer(NamedTuple):
    """A pair offered to a full memory.

    Args:
        slots: those of the memory.
        group, priority: of the offered pair.
        spares_inherited: whether slots of inherited groups may not be evicted.
        seen: number of pairs that were offered the evictable slots, this one included.
        generator: on the CPU; the only source of randomness.
    """

    slots: Slots
    group: int
    priority: float
    spares_inherited: bool
    seen: int
    generator: torch.Generator

    def candidates(self, groups: Iterable[int]) -> list[int]:
        """Return those of ``groups`` whose slots may be evicted."""
        return [group for group in groups if group >= 0 or not self.spares_inherited]

    def largest(self, groups: Iterable[int]) -> list[int]:
        """Return the candidates among ``groups`` with the most slots, this pair counted."""
        of_group, own = self.slots.sizes, self.group
        sizes = {g: of_group[g] + (g == own) for g in self.candidates(groups)}
        most = max(sizes.values())
        return [group for group, size in sizes.items() if size == most]

    def weaker(self, groups: Collection[int]) -> int | None:
        """Return the weakest slot of ``groups``; ``None`` if this pair is of one and no stronger."""
        slot = self.slots.weakest(groups)
        is_outdone = self.group in groups and self.priority <= self.slots.priority(slot)
        return None if is_outdone else slot


@RETENTIONS.register("score", in_batches=True)
def score(offer: Offer) -> int | None:
    """Evict the candidate with the lowest sigma / (1 + r), ties to the lowest slot (paper)."""
    return offer.slots.weakest(offer.candidates(offer.slots.sizes))


@RETENTIONS.register("reservoir", in_batches=True, at_random=True)
def reservoir(offer: Offer) -> int | None:
    """Evict a uniformly random candidate or discard the new pair, so that every pair offered so far
    is kept with the same probability (Vitter 1985, algorithm R).
    """
    pick = torch.randint(offer.seen, (), generator=offer.generator, device="cpu")
    return offer.slots.at(int(pick), offer.spares_inherited)


@RETENTIONS.register("balanced", in_batches=True, by_origin=True)
def balanced(offer: Offer) -> int | None:
    """Evict from the origin with the most slots, the new pair counted, ties to the lowest origin;
    within the origin, the slot that ``score`` evicts.
    """
    return offer.slots.weakest([min(offer.largest(offer.slots.sizes))])


@RETENTIONS.register("surprise", in_batches=True, by_origin=True, counts_replays=False)
def surprise(offer: Offer) -> int | None:
    """Evict from the same origin as ``balanced``, but the slot with the lowest score, however often
    it was replayed; a new pair of that origin that scores no higher is discarded. Each origin thus
    keeps an equal number of its most surprising pairs (SuRe, arXiv:2511.22367).
    """
    return offer.weaker([min(offer.largest(offer.slots.sizes))])


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
    return offer.weaker(offer.largest(offer.slots.large()))


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
