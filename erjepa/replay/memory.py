"""The episodic memory: a fixed number of slots, each with a pair and its statistics."""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from erjepa.replay.addresses import DenseAddresses, SparseAddresses
from erjepa.replay.checks import finite, one_per_pair
from erjepa.replay.codes import Codes
from erjepa.replay.placement import place_writes
from erjepa.replay.records import Record, RecordStore


class EpisodicMemory:
    """Stored pairs with address, running JEPA error and replay count.

    A slot is the paper's m_n = (s_n, tau^u_n, tau^a_n, sigma_n, r_n) (appendix "Episodic
    Memory and Retrieval"): address, tokens, ``score`` and ``replay_count``, plus the
    example it came from. The slots in use are always 0 .. len - 1; none is ever freed.

    Args:
        capacity (int): number of slots M.
        addresses (SparseAddresses | DenseAddresses): address table of M slots.
        on_revisit (str): what writing an example that has a slot does: "keep" nothing,
            the slot stays as inserted; "refresh" rewrites tokens, address and score there
            and keeps the replay count; "append" takes another slot.
        score_update_rate (float): weight of a new error in the running one, eta.
        device (torch.device | str): where ids, scores and counts live; the device of
            ``addresses``. Tokens stay on the CPU.
    """

    def __init__(
        self,
        capacity: int,
        addresses: SparseAddresses | DenseAddresses,
        *,
        on_revisit: str = "refresh",
        score_update_rate: float = 0.1,
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity = capacity
        self.addresses = addresses
        self.on_revisit = on_revisit
        self.score_update_rate = score_update_rate
        self.device = torch.device(device)
        self._size = 0
        self._records = RecordStore(capacity)
        self._example_ids = torch.empty(capacity, dtype=torch.int64, device=device)
        self._scores = torch.empty(capacity, dtype=torch.float32, device=device)
        self._replay_counts = torch.empty(capacity, dtype=torch.int32, device=device)

    def __len__(self) -> int:
        return self._size

    @property
    def example_ids(self) -> Tensor:
        """Examples in the slots in use, int64, shape [N]."""
        return self._example_ids[: self._size]

    @property
    def scores(self) -> Tensor:
        """Running JEPA errors sigma, float32, shape [N]."""
        return self._scores[: self._size]

    @property
    def replay_counts(self) -> Tensor:
        """Number of times each slot has been replayed, r, int32, shape [N]."""
        return self._replay_counts[: self._size]

    def write(
        self,
        example_ids: Tensor,
        records: Sequence[Record],
        codes: Codes,
        scores: Tensor,
    ) -> None:
        """Stores B pairs; the same as storing them one by one, at O(M + B log B).

        A full memory evicts the slot of the lowest sigma / (1 + r) in float32 (appendix
        "Shared Episodic Memory"), ties to the lowest slot. What the batch itself wrote
        can be evicted by what follows in it. A new entry starts with a replay count of 0.

        Args:
            example_ids (Tensor): int64, shape [B]; repeats allowed.
            records (Sequence[Record]): B tuples of token segments, e.g. (source, target).
            codes (Codes): B addresses from ``addresses.encode``.
            scores (Tensor): JEPA errors d(p, z^a), shape [B].

        Raises:
            ValueError: if the numbers of ids, records, codes and scores differ, records
                differ in their number of segments, or a score is not finite.
        """
        pairs = len(records)
        one_per_pair("example_ids", example_ids, pairs)
        scores = self._errors(scores, pairs)
        one_per_pair("addresses", codes.values[:, 0], pairs)
        self._records.check(records)
        if not pairs:
            return
        example_ids = example_ids.to(self.device)
        placed = place_writes(
            example_ids,
            scores,
            stored_ids=self.example_ids,
            stored_scores=self.scores,
            stored_counts=self.replay_counts,
            capacity=self.capacity,
            on_revisit=self.on_revisit,
        )
        slots, rows = list(placed.writer), list(placed.writer.values())
        self._size = placed.size
        self._records.write(slots, [records[row] for row in rows])
        at = torch.tensor(slots, dtype=torch.int64, device=self.device)
        taken = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self._example_ids[at] = example_ids[taken]
        self._scores[at] = scores[taken]
        self._replay_counts[placed.replaced] = 0
        self.addresses.put(at, codes.rows(taken))

    def refresh(self, slots: Sequence[int], errors: Tensor) -> None:
        """Takes in the errors of a replay forward pass: sigma <- (1 - eta) sigma + eta d
        and r <- r + 1 (appendix "Shared Episodic Memory"), once per occurrence, in order.

        Args:
            slots (Sequence[int]): replayed slots, repeats allowed, n of them.
            errors (Tensor): their JEPA errors d under the current model, shape [n].

        Raises:
            ValueError: if a slot is not in use, or there is not one finite error per slot.
        """
        errors = self._errors(errors, len(slots))
        if not all(0 <= slot < self._size for slot in slots):
            raise ValueError(f"refresh takes slots below {self._size}, got {slots}")
        rate = self.score_update_rate
        pending = list(range(len(slots)))
        while pending:
            # One occurrence of each slot at a time: repeats compound in their order.
            first = {slots[p]: p for p in reversed(pending)}
            at = torch.tensor(list(first), device=self.device)
            new = errors[list(first.values())]
            self._scores[at] = (1 - rate) * self._scores[at] + rate * new
            self._replay_counts[at] += 1
            pending = [p for p in pending if first[slots[p]] != p]

    def records(self, slots: Sequence[int]) -> list[tuple[array, ...]]:
        """The stored token segments of ``slots``, in their order, repeats included."""
        return self._records.read(slots)

    def eligible(self, current_ids: Tensor) -> Tensor:
        """Slots in use whose example is not among ``current_ids`` [B]: bool, [N]."""
        return ~torch.isin(self.example_ids, current_ids.to(self.device))

    def similarity(self, codes: Codes) -> Tensor:
        """Cosine of each of B cues with the slots in use, float32, shape [B, N]."""
        return self.addresses.similarity(codes, self._size)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the slots in use, on the CPU: plain tensors, ints and a string."""
        return {
            "capacity": self.capacity,
            "on_revisit": self.on_revisit,
            "example_ids": self.example_ids.to("cpu", copy=True),
            "scores": self.scores.to("cpu", copy=True),
            "replay_counts": self.replay_counts.to("cpu", copy=True),
            "records": self._records.state_dict(self._size),
            "addresses": self.addresses.state_dict(self._size),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces the content by what ``state_dict`` returned.

        Raises:
            ValueError: if capacity is below the saved one, or other settings differ.
        """
        if self.capacity < state["capacity"]:
            raise ValueError(
                f"replay.capacity must be at least the checkpoint's {state['capacity']}, "
                f"got {self.capacity}; a memory can grow on resuming, not shrink"
            )
        if self.on_revisit != state["on_revisit"]:
            raise ValueError(
                f"replay.on_revisit must be the checkpoint's {state['on_revisit']!r}, "
                f"got {self.on_revisit!r}; resume with the value the run started with"
            )
        self.addresses.load_state_dict(state["addresses"])
        self._records.load_state_dict(state["records"])
        self._size = state["example_ids"].numel()
        self.example_ids.copy_(state["example_ids"])
        self.scores.copy_(state["scores"])
        self.replay_counts.copy_(state["replay_counts"])

    def _errors(self, errors: Tensor, pairs: int) -> Tensor:
        errors = errors.detach().to(self.device, torch.float32)
        one_per_pair("JEPA errors", errors, pairs)
        finite("JEPA errors", errors)
        return errors
