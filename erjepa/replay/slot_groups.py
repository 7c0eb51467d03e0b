"""The slots of a memory in groups, as retention rules query them."""

import heapq
from collections import Counter
from collections.abc import Collection

import torch
from torch import Tensor

from erjepa.replay.addresses import top_k_descending


class SlotGroups:
    """The slots in use while a batch of B writes is placed, for the rules of ``retention.py``.

    Args:
        groups: of the slots, int64 [N]: their origins or, for rules that ignore the origin, -1 for
            inherited slots and 0 for those of the run; ``None``: all are 0.
    """

    def __init__(
        self, priorities: Tensor, groups: Tensor | None, num_writes: int
    ) -> None:
        self.sizes = Counter({0: len(priorities)})
        if groups is not None:
            priorities, groups = priorities.cpu(), groups.cpu()
            names, counts = groups.unique(return_counts=True)
            self.sizes = Counter(
                dict(zip(names.tolist(), counts.tolist(), strict=True))
            )
        self._priorities = priorities
        self._groups = groups
        self._num_writes = num_writes
        self._written: dict[int, tuple[int, float]] = {}
        self._heaps: dict[int, list[tuple[float, int]]] = {}

    def put(self, slot: int, group: int, priority: float) -> None:
        """Record that a pair of the batch is written to ``slot``."""
        if slot in self._written or slot < len(self._priorities):
            self.sizes[self._group_of(slot)] -= 1
        self.sizes[group] += 1
        self._written[slot] = group, priority
        if group in self._heaps:
            heapq.heappush(self._heaps[group], (priority, slot))

    def weakest(self, groups: Collection[int]) -> int:
        """Return the slot with the lowest priority in ``groups``, ties to the lowest slot."""
        return min(self._weakest_entry(group) for group in groups)[1]

    def priority(self, slot: int) -> float:
        """Return the priority of a slot."""
        if slot in self._written:
            return self._written[slot][1]
        return self._priorities[slot].item()

    def at(self, place: int, groups: Collection[int]) -> int | None:
        """Return slot number ``place`` of ``groups``, in ascending order, if there are so many."""
        if place >= sum(self.sizes[group] for group in groups):
            return None
        if self._groups is None or all(g in groups for g, n in self.sizes.items() if n):
            return place
        return int(self.members(groups).nonzero()[place])

    def members(self, groups: Collection[int]) -> Tensor:
        """Return which slots are in one of ``groups``, bool [N], on the CPU."""
        of_slots = torch.zeros(self.sizes.total(), dtype=torch.int64)
        if self._groups is not None:
            of_slots[: len(self._groups)] = self._groups
        for slot, (group, _) in self._written.items():
            of_slots[slot] = group
        return torch.isin(of_slots, torch.tensor(list(groups)))

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
            # Skip entries of slots that have been rewritten since.
            if self._written.get(slot, (group, priority)) == (group, priority):
                return heap[0]
            heapq.heappop(heap)

    def _heap(self, group: int) -> list[tuple[float, int]]:
        """Return the weakest slots of a group as a heap of (priority, slot).

        The B weakest from before the batch suffice: each write changes at most one of them, so
        before any write one is unchanged, and no slot outside the heap is weaker than that one.
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
