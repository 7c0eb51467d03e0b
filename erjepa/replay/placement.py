"""Where a batch of writes goes, as if the pairs had been written one by one."""

import heapq
from typing import NamedTuple

import torch
from torch import Tensor

from erjepa.replay.addresses import top_k_descending


class Placement(NamedTuple):
    """The outcome of a batch of writes.

    Attributes:
        writer (dict[int, int]): slot to the row of the batch that it holds in the end.
        replaced (list[int]): slots that received a new entry rather than a revisit.
        size (int): number of slots in use afterwards.
    """

    writer: dict[int, int]
    replaced: list[int]
    size: int


def place_writes(
    example_ids: Tensor,
    scores: Tensor,
    *,
    stored_ids: Tensor,
    stored_scores: Tensor,
    stored_counts: Tensor,
    capacity: int,
    on_revisit: str,
) -> Placement:
    """Slots for B writes in order, at O(N + B log B).

    An example that has a slot is not written ("keep") or written there ("refresh"). Any
    other, and with "append" every one, takes the next free slot, else the one of the lowest
    (sigma / (1 + r), slot) (appendix "Shared Episodic Memory").

    Args:
        example_ids (Tensor): examples to write, int64, shape [B].
        scores (Tensor): their scores, float32, shape [B].
        stored_ids (Tensor): examples of the slots in use, int64, shape [N].
        stored_scores (Tensor): scores sigma of these slots, float32, shape [N].
        stored_counts (Tensor): replay counts r of these slots, shape [N].
        capacity (int): number of slots, M.
        on_revisit (str): keep, refresh or append.

    Returns:
        Placement: the last writer of every slot that is written.
    """
    priorities = stored_scores / (1 + stored_counts)
    # B weakest slots suffice: each write changes at most one of them, so before any write
    # one is unchanged, and no slot outside the list is weaker than that one.
    weakest = top_k_descending(-priorities[None], min(len(scores), len(priorities)))[0]
    rows = example_ids.tolist()
    slot_of: dict[int, int] = {}
    counts = torch.zeros_like(scores)
    if on_revisit != "append":
        held = torch.isin(stored_ids, example_ids).nonzero().flatten()
        slot_of = dict(zip(stored_ids[held].tolist(), held.tolist(), strict=True))
        known = [row for row, example in enumerate(rows) if example in slot_of]
        slots = [slot_of[rows[row]] for row in known]
        counts[known] = stored_counts[slots].to(counts.dtype)
    return _simulate(
        rows,
        scores.tolist(),
        (scores / (1 + counts)).tolist(),
        list(zip(priorities[weakest].tolist(), weakest.tolist(), strict=True)),
        slot_of,
        size=len(stored_ids),
        capacity=capacity,
        on_revisit=on_revisit,
    )


def _simulate(
    example_ids: list[int],
    new_priorities: list[float],
    revisit_priorities: list[float],
    heap: list[tuple[float, int]],
    slot_of: dict[int, int],
    *,
    size: int,
    capacity: int,
    on_revisit: str,
) -> Placement:
    """The writes one by one, on the weakest (priority, slot) entries and the batch's own.

    ``revisit_priorities`` hold for the slots that ``slot_of`` starts with. ``heap`` comes
    sorted, which makes it a heap.
    """
    priority_of = {slot: priority for priority, slot in heap}
    owner = {slot: example for example, slot in slot_of.items()}
    writer: dict[int, int] = {}
    replaced: dict[int, None] = {}
    for row, example in enumerate(example_ids):
        slot = slot_of.get(example)
        if slot is not None and on_revisit == "keep":
            continue
        if slot is None:
            if size < capacity:
                slot, size = size, size + 1
            else:
                slot = _pop_weakest(heap, priority_of)
                if slot in owner:
                    slot_of.pop(owner.pop(slot), None)
            replaced[slot] = None
            if on_revisit != "append":
                slot_of[example], owner[slot] = slot, example
        priority = (new_priorities if slot in replaced else revisit_priorities)[row]
        writer[slot] = row
        priority_of[slot] = priority
        heapq.heappush(heap, (priority, slot))
    return Placement(writer, list(replaced), size)


def _pop_weakest(heap: list[tuple[float, int]], priority_of: dict[int, float]) -> int:
    """Pops the slot of the lowest entry; entries of rewritten slots are passed over."""
    while True:
        priority, slot = heapq.heappop(heap)
        if priority_of[slot] == priority:
            return slot
