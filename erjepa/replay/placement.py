"""Where a batch of writes goes, as if the pairs had been written one by one."""

import heapq
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from erjepa.replay.addresses import top_k_descending
from erjepa.replay.registry import Retention
from erjepa.replay.retention import ORIGIN_BITS, Offer, origins, priorities


class Placement(NamedTuple):
    """The outcome of a batch of writes.

    Args:
        writer: slot to the row of the batch that it holds in the end.
        replaced: slots that received a new entry rather than a revisit.
        size: number of slots in use afterwards.
        seen: how many pairs have been offered a place so far.
    """

    writer: dict[int, int]
    replaced: Collection[int]
    size: int
    seen: int


class SlotGroups:
    """The slots in use while a batch of B writes goes in, for the rules of ``retention.py``.

    The rules tell slots apart by ``groups``, int64 [N]: by origin or, where the origin does not
    matter, inherited slots (-1) from those of the run (0); ``None``: all are 0. All that they ask
    is answered on the CPU.
    """

    def __init__(
        self, priorities: Tensor, groups: Tensor | None, num_writes: int
    ) -> None:
        self.sizes = Counter({0: len(priorities)})
        if groups is not None:
            priorities, groups = priorities.cpu(), groups.cpu()
            found, counts = groups.unique(return_counts=True)
            self.sizes = Counter(
                dict(zip(found.tolist(), counts.tolist(), strict=True))
            )
        self._priorities = priorities
        self._groups = groups
        self._num_writes = num_writes
        self._written: dict[int, tuple[int, float]] = {}
        self._heaps: dict[int, list[tuple[float, int]]] = {}

    def put(self, slot: int, group: int, priority: float) -> None:
        """Put a pair of the batch into a slot."""
        if slot in self._written or slot < len(self._priorities):
            self.sizes[self._group_of(slot)] -= 1
        self.sizes[group] += 1
        self._written[slot] = group, priority
        if group in self._heaps:
            heapq.heappush(self._heaps[group], (priority, slot))

    def weakest(self, groups: Collection[int]) -> int:
        """The slot of the lowest priority in ``groups``, ties to the lowest slot."""
        return min(self._weakest_entry(group) for group in groups)[1]

    def priority(self, slot: int) -> float:
        """Of a slot."""
        if slot in self._written:
            return self._written[slot][1]
        return self._priorities[slot].item()

    def at(self, place: int, groups: Collection[int]) -> int | None:
        """The slot at that place among all of ``groups`` in ascending order, if any."""
        if place >= sum(self.sizes[group] for group in groups):
            return None
        if self._groups is None or all(g in groups for g, n in self.sizes.items() if n):
            return place
        of_slots = torch.zeros(self.sizes.total(), dtype=torch.int64)
        of_slots[: len(self._groups)] = self._groups
        for slot, (group, _) in self._written.items():
            of_slots[slot] = group
        return int(torch.isin(of_slots, torch.tensor(list(groups))).nonzero()[place])

    def _group_of(self, slot: int) -> int:
        if slot in self._written:
            return self._written[slot][0]
        return 0 if self._groups is None else int(self._groups[slot])

    def _weakest_entry(self, group: int) -> tuple[float, int]:
        heap = self._heaps.get(group)
        if heap is None:
            heap = self._heaps[group] = self._heap(group)
        while True:
            priority, slot = heap[0]
            # Entries of slots that have been rewritten since are passed over.
            if self._written.get(slot, (group, priority)) == (group, priority):
                return heap[0]
            heapq.heappop(heap)

    def _heap(self, group: int) -> list[tuple[float, int]]:
        """The weakest slots of a group as a heap of (priority, slot).

        B of those before the batch suffice: each write changes at most one of them, so before
        any write one is unchanged, and no slot outside the list is weaker than that one.
        """
        strength, size = -self._priorities, len(self._priorities)
        if self._groups is not None:
            is_outside = self._groups != group
            strength = strength.masked_fill(is_outside, -torch.inf)
            size -= int(is_outside.sum())
        slots = top_k_descending(strength[None], min(self._num_writes, size))[0]
        heap = list(zip(self._priorities[slots].tolist(), slots.tolist(), strict=True))
        heap += [(p, slot) for slot, (of, p) in self._written.items() if of == group]
        heapq.heapify(heap)
        return heap


def place_writes(
    example_ids: Tensor,
    scores: Tensor,
    *,
    stored_ids: Tensor,
    stored_scores: Tensor,
    stored_counts: Tensor,
    capacity: int,
    on_revisit: str,
    retain: Retention,
    reserved: int,
    seen: int,
    seen_before: int,
    generator: torch.Generator | None,
) -> Placement:
    """Where B writes in order go, at O(N + B log B): the last writer of every slot.

    An example that has a slot is not written ("keep") or written there ("refresh"). Any
    other, and with "append" every one, takes the next free slot, else the one that the
    retention rule evicts.

    Args:
        example_ids, scores: of the writes, int64 and float32, shape [B].
        stored_ids, stored_scores, stored_counts: of the slots in use, shape [N].
        capacity: number of slots, M.
        retain: a rule that takes an ``Offer``.
        reserved: most inherited slots that are never evicted.
        seen: how many pairs have been offered a place so far.
        seen_before: how many of them to the run that the memory is inherited from.
    """
    ids, size = example_ids.tolist(), len(stored_ids)
    groups = None
    if retain.by_origin:
        groups = origins(stored_ids)
    elif seen_before:  # some may be inherited
        groups = origins(stored_ids).clamp(-1, 0)
    is_counted = retain.counts_replays
    strength = priorities(stored_scores, stored_counts) if is_counted else stored_scores
    slots = SlotGroups(strength, groups, len(ids))
    slot_of: dict[int, int] = {}
    count_of: dict[int, int] = {}  # of slots that had an example of the batch before it
    if on_revisit != "append":
        held = torch.isin(stored_ids, example_ids).nonzero().flatten()
        found = torch.stack([stored_ids[held], held, stored_counts[held].long()])
        for example, slot, count in found.T.tolist():
            slot_of[example], count_of[slot] = slot, count
    new_scores = scores.cpu()
    example_in = {slot: example for example, slot in slot_of.items()}
    writer: dict[int, int] = {}
    replaced: dict[int, None] = {}
    for row, example in enumerate(ids):
        group = example >> ORIGIN_BITS if retain.by_origin else 0
        slot = slot_of.get(example)
        if slot is not None and on_revisit == "keep":
            continue
        if slot is None:
            seen += 1
            if size < capacity:
                slot, size = size, size + 1
            else:
                candidates, offered = [g for g, n in slots.sizes.items() if n], seen
                if sum(slots.sizes[g] for g in candidates if g < 0) <= reserved:
                    candidates = [g for g in candidates if g >= 0]
                    offered -= seen_before
                score = new_scores[row].item()
                slot = retain.evict(
                    Offer(slots, group, score, candidates, offered, generator)
                )
                if slot is None:
                    continue
                if slot in example_in:
                    slot_of.pop(example_in.pop(slot), None)
            replaced[slot] = None
            count_of[slot] = 0
            if on_revisit != "append":
                slot_of[example], example_in[slot] = slot, example
        writer[slot] = row
        priority = new_scores[row]
        if is_counted:
            priority = priorities(priority, torch.tensor(count_of[slot]))
        slots.put(slot, group, priority.item())
    return Placement(writer, list(replaced), size, seen)
