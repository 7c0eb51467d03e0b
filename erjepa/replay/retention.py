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
from collections.abc import Collection, Iterable
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
    """The slots in use while a batch of writes is placed: their priorities and groups, on the CPU.

    Args:
        priorities: of N slots, float32 [N].
        groups: of the slots, int64 [N]: their origins, or :func:`origins_and_targets`; for rules
            that ignore both, -1 for inherited slots and 0 for those of the run; ``None``: all 0.
        num_writes: maximum number of slots that the batch adds.

    Attributes:
        sizes: number of slots of each group.
        num_inherited: number of slots of inherited groups.
    """

    def __init__(
        self, priorities: Tensor, groups: Tensor | None, num_writes: int
    ) -> None:
        self._size = size = len(priorities)
        self._priorities = torch.empty(size + num_writes, device="cpu")
        self._priorities[:size] = priorities
        self._groups = torch.zeros(size + num_writes, dtype=torch.int64, device="cpu")
        self.sizes = Counter({0: size})
        if groups is not None:
            self._groups[:size] = groups
            names, counts = self._groups[:size].unique(return_counts=True)
            sizes = zip(names.tolist(), counts.tolist(), strict=True)
            self.sizes = Counter(dict(sizes))
        self.num_inherited = sum(n for group, n in self.sizes.items() if group < 0)
        self._num_writes = num_writes
        self._weak: dict[int, dict[int, float]] = {}
        self._crowds: Tensor | None = None  # sizes of the slots' groups, once asked for

    def put(self, slot: int, group: int, priority: float) -> None:
        """Record that a pair of the batch is written to ``slot``."""
        if slot < self._size:
            before = int(self._groups[slot])
            self._resize(before, -1)
            self._weak.get(before, {}).pop(slot, None)
        self._size = max(self._size, slot + 1)
        self._groups[slot], self._priorities[slot] = group, priority
        self._resize(group, 1)
        if self._crowds is not None:
            self._crowds[slot] = self.sizes[group]
        if group in self._weak:
            self._weak[group][slot] = priority

    def _resize(self, group: int, by: int) -> None:
        self.sizes[group] += by
        self.num_inherited += by * (group < 0)
        if self._crowds is not None:
            self._crowds[self._groups[: self._size] == group] += by

    def candidates(self, only_new: bool) -> list[int]:
        """Return the groups that have slots, all or without the inherited ones."""
        return [g for g, n in self.sizes.items() if n and (g >= 0 or not only_new)]

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
        do not count.
        """
        groups = self._groups[: self._size]
        if self._crowds is None:  # from now on the memory is full, and the size fixed
            _, at, sizes = groups.unique(return_inverse=True, return_counts=True)
            self._crowds = sizes[at]
        crowds = self._crowds + (groups == group)
        if only_new:
            crowds[groups < 0] = 0
        own = self.sizes[group] + 1
        most = max(int(crowds.max()), own)
        left = self._priorities[: self._size].masked_fill(crowds != most, torch.inf)
        return int(left.argmin()), own == most

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
