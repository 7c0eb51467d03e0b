"""Placement of a batch of writes, as if the pairs were written one by one."""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from erjepa.replay.registry import Retention
from erjepa.replay.retention import ORIGIN_BITS, Offer, origins, priorities
from erjepa.replay.slot_groups import SlotGroups


class Placement(NamedTuple):
    """The result of placing a batch of writes.

    Args:
        writer: maps each written slot to the batch row that it holds in the end.
        replaced: slots that received a new entry rather than a revisit.
        size: number of slots in use afterwards.
        seen: number of pairs offered to the memory so far, this batch included.
    """

    writer: dict[int, int]
    replaced: Collection[int]
    size: int
    seen: int


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
    """Place B writes in order, in O(N + B log B).

    An example that has a slot is skipped ("keep") or written to that slot ("refresh"). Any other
    example, and every example with "append", takes the next free slot or, in a full memory, the
    slot that the retention rule evicts.

    Args:
        example_ids, scores: of the pairs to write, int64 and float32, shape [B].
        stored_ids, stored_scores, stored_counts: of the slots in use, shape [N].
        capacity: number of slots, M.
        retain: a rule that takes an ``Offer``.
        reserved: inherited slots are not evicted while there are at most this many.
        seen: number of pairs offered to the memory before this batch.
        seen_before: how many of them were offered before the memory was inherited.
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
    count_of: dict[int, int] = {}  # replay counts of slots that may be written
    if on_revisit != "append":
        held = torch.isin(stored_ids, example_ids).nonzero().flatten()
        columns = torch.stack([stored_ids[held], held, stored_counts[held].long()])
        for example, slot, count in columns.T.tolist():
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
