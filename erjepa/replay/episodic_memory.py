"""The episodic memory: a fixed number of slots, each with a pair and its statistics."""

from array import array
from collections.abc import Mapping, Sequence
from zlib import crc32

import torch
from torch import Tensor

from erjepa.replay.addresses import Addresses, AddressTable, require_finite
from erjepa.replay.registry import Retention
from erjepa.replay.retention import (
    SCORE,
    Offer,
    Slots,
    marks,
    origins,
    origins_and_targets,
    priorities,
)
from erjepa.replay.segments import Segments, SegmentStore
from erjepa.replay.state import MemoryState, NoAddresses, OnRevisit

_LAST_BITS = (1 << 16) - 1


class EpisodicMemory:
    """Stored pairs, each with an address, a running error and a replay count.

    A slot is the paper's m_n = (s_n, tau^u_n, tau^a_n, sigma_n, r_n) (appendix "Episodic
    Memory and Retrieval"): address, tokens, ``score`` and ``replay_count``, plus the example id.
    The caller decides which error the score tracks, JEPA or next-token. The slots in use are
    always 0 .. len - 1; slots are never freed.

    Args:
        capacity: number of slots M.
        address_table: stores the addresses of M slots; ``None``: slots have no addresses.
        on_revisit: what writing an example that already has a slot does. "keep": nothing;
            "refresh": rewrite its tokens, address and score but not its replay count; "append":
            use another slot.
        retain: rule that chooses the slot to evict from a full memory, see ``retention.py``.
        reserved_slots: number of slots reserved for inherited examples, which are not evicted
            while they occupy at most that many.
        score_update_rate: weight eta of a new error in the running error.
        generator: of random retention rules, on the CPU; by default a new one, of seed 0.
        device: of ids, scores, counts and ``address_table``. Tokens stay on the CPU.

    Attributes:
        history: checksum of all writes by this process.
    """

    def __init__(
        self,
        capacity: int,
        address_table: AddressTable | None,
        *,
        on_revisit: OnRevisit = "refresh",
        retain: Retention = SCORE,
        reserved_slots: int = 0,
        score_update_rate: float = 0.1,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity = capacity
        self.address_table = address_table
        self.on_revisit = on_revisit
        self.score_update_rate = score_update_rate
        self.device = torch.device(device)
        self._retain = retain
        self._reserved = reserved_slots
        self._generator = generator or torch.Generator("cpu").manual_seed(0)
        self.history = 0
        self._size = 0
        # Pairs offered to the memory so far, and before it was inherited.
        self._seen = self._seen_before = 0
        self._offered: set[int] = set()  # the examples of this run among them
        self._segments = SegmentStore(capacity)
        self._example_ids = torch.empty(capacity, dtype=torch.int64, device=device)
        self._scores = torch.empty(capacity, dtype=torch.float32, device=device)
        self._replay_counts = torch.empty(capacity, dtype=torch.int32, device=device)
        num_marked = capacity if retain.by_target else 0
        self._marks = torch.empty(num_marked, 2, dtype=torch.int64, device="cpu")
        self._slots = Slots(capacity)

    def __len__(self) -> int:
        return self._size

    @property
    def _seed(self) -> int:
        """Seed of the random numbers of pairs: that of the generator, also after another run's
        state was set, so that pairs keep their numbers.
        """
        return self._generator.initial_seed()

    @property
    def example_ids(self) -> Tensor:
        """Example ids of the slots in use, int64, shape [N]."""
        return self._example_ids[: self._size]

    @property
    def scores(self) -> Tensor:
        """Running errors sigma, float32, shape [N]."""
        return self._scores[: self._size]

    @property
    def replay_counts(self) -> Tensor:
        """Number of times each slot has been replayed, r, int32, shape [N]."""
        return self._replay_counts[: self._size]

    def write(
        self,
        example_ids: Tensor,
        segments: Sequence[Segments],
        addresses: Addresses | None,
        scores: Tensor,
    ) -> None:
        """Store B pairs, with the same result as storing them one by one.

        A full memory evicts the slot with the lowest sigma / (1 + r) in float32 (appendix "Shared
        Episodic Memory"), ties to the lowest slot; other retention rules choose differently. A pair
        of the batch can be evicted by a later pair of the same batch. A new entry starts with a
        replay count of 0.

        Args:
            example_ids: int64, shape [B]; repeats allowed.
            segments: B tuples of token segments, e.g. (source, target).
            addresses: B addresses from ``address_table.encode``; ``None`` without a table.
            scores: errors of the pairs, d(p, z^a) in the paper, shape [B].

        Raises:
            ValueError: if a score is not finite.
        """
        pairs = len(segments)
        scores = self._errors(scores)
        if not pairs:
            return
        example_ids = example_ids.to(self.device)
        new = marks(segments, self._seed) if self._retain.by_target else None
        # A rule that reads the memory is to see every earlier write of the batch.
        step = pairs if self._retain.in_batches else 1
        for start in range(0, pairs, step):
            rows = range(start, start + step)
            writer, count_of = self._place(rows, example_ids, scores, new)
            slots, written = list(writer), list(writer.values())
            if new is not None:
                self._marks[slots] = new[written]
            self.history = crc32(array("q", slots + written), self.history)
            self._segments.write(slots, [segments[row] for row in written])
            counts = [count_of[slot] for slot in slots]
            at, taken, replays = torch.tensor(
                [slots, written, counts], dtype=torch.int64, device=self.device
            )
            self._example_ids[at] = example_ids[taken]
            self._scores[at] = scores[taken]
            self._replay_counts[at] = replays.int()
            if self.address_table is not None:
                assert addresses is not None
                self.address_table.put(at, addresses.rows(taken))

    def _place(
        self, rows: range, example_ids: Tensor, scores: Tensor, new: Tensor | None
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Assign slots to ``rows`` of a batch, in order, and count the pairs as offered. ``new``
        are the marks of the batch if the rule distinguishes targets.

        An example that has a slot is skipped ("keep") or written to that slot ("refresh"). Any
        other example, and every example with "append", takes the next free slot or, in a full
        memory, the slot that the retention rule evicts. A random rule is asked once per example.

        Returns:
            The batch row that each written slot holds in the end, and its replay count.
        """
        retain, slots = self._retain, self._slots
        strength, new_scores = self.scores, scores.cpu()
        ids, new_groups = example_ids.tolist(), self._groups(example_ids, new).tolist()
        if new is not None:
            strength = self._marks[: self._size, 1].float()
            new_scores = new[:, 1].float()
        if retain.counts_replays:
            strength = priorities(strength, self.replay_counts)
        slots.start_batch(strength, new_groups)
        slot_of: dict[int, int] = {}
        count_of: dict[int, int] = {}
        if self.on_revisit != "append":
            held = self._is_of(example_ids).nonzero().flatten()
            counts = self.replay_counts[held].long()
            columns = torch.stack([self.example_ids[held], held, counts])
            for example, slot, count in columns.T.tolist():
                slot_of[example], count_of[slot] = slot, count
        writer: dict[int, int] = {}
        for row in rows:
            example, group, score = ids[row], new_groups[row], new_scores[row]
            slot = slot_of.get(example)
            if slot in writer and ids[writer[slot]] != example:
                slot = None  # it has been evicted
            if slot is not None and self.on_revisit == "keep":
                continue
            if slot is None:
                is_new = self.on_revisit == "append" or example not in self._offered
                self._seen += is_new
                self._offered.add(example)
                if self._size < self.capacity:
                    slot = self._size
                    self._size += 1
                elif retain.at_random and not is_new:
                    continue  # it had its chance
                else:
                    slot = self._evict(example, group, score.item())
                    if slot is None:
                        continue
                count_of[slot] = 0
                if self.on_revisit != "append":
                    slot_of[example] = slot
            writer[slot] = row
            if retain.counts_replays:
                score = priorities(score, torch.tensor(count_of[slot]))
            slots.put(slot, group, score.item())
        return writer, count_of

    def _groups(self, example_ids: Tensor, of_pairs: Tensor | None) -> Tensor:
        """Return the groups that the rule distinguishes, int64, shape of ``example_ids``."""
        if of_pairs is not None:
            return origins_and_targets(example_ids, of_pairs)
        of_each = origins(example_ids)
        return of_each if self._retain.by_origin else of_each.clamp(-1, 0)

    def _regroup(self) -> None:
        marked = self._marks[: self._size] if self._retain.by_target else None
        self._slots.assign(self._groups(self.example_ids, marked))

    def _is_of(self, example_ids: Tensor) -> Tensor:
        """Return which slots in use hold one of ``example_ids`` [B]: bool, [N]."""
        stored = self.example_ids
        if self.device.type != "cpu":
            return torch.isin(stored, example_ids)
        # isin() is slow on a CPU. Few slots remain that have the last bits of one of the ids.
        is_wanted = torch.zeros(_LAST_BITS + 1, dtype=torch.bool, device="cpu")
        is_wanted[example_ids & _LAST_BITS] = True
        is_held = is_wanted[stored & _LAST_BITS]
        slots = is_held.nonzero().flatten()
        is_held[slots] = torch.isin(stored[slots], example_ids)
        return is_held

    def _evict(self, example: int, group: int, score: float) -> int | None:
        """Return the slot that a pair takes in the full memory, or ``None`` to discard the pair."""
        slots = self._slots
        spares = slots.num_inherited <= self._reserved
        seen = self._seen - self._seen_before if spares else self._seen
        evict = self._retain.evict
        if self._retain.in_batches:
            return evict(Offer(slots, group, score, spares, seen, self._generator))
        evictable = slots.evictable(spares).to(self.device)
        slot = evict(self, example, evictable, seen=seen, generator=self._generator)
        if slot is None or (0 <= slot < self._size and bool(evictable[slot])):
            return slot
        raise ValueError(
            "replay.retention must return None or a slot that may be evicted; it returned "
            f"{slot}"
        )

    def refresh(self, slots: Sequence[int], errors: Tensor) -> None:
        """Update n replayed slots, in order and repeats allowed, with their errors d [n] under the
        current model: sigma <- (1 - eta) sigma + eta d and r <- r + 1 (appendix "Shared Episodic
        Memory").

        Raises:
            ValueError: if an error is not finite.
        """
        errors = self._errors(errors)
        rate = self.score_update_rate
        pending = list(range(len(slots)))
        while pending:
            # One occurrence of each slot per iteration, so that repeats are applied in order.
            first = {slots[p]: p for p in reversed(pending)}
            at = torch.tensor(list(first), device=self.device)
            new = errors[list(first.values())]
            self._scores[at] = (1 - rate) * self._scores[at] + rate * new
            self._replay_counts[at] += 1
            pending = [p for p in pending if first[slots[p]] != p]

    def segments(self, slots: Sequence[int]) -> list[Segments]:
        """Return the token segments of ``slots``, in their order, repeats included."""
        return self._segments.read(slots)

    def eligible(self, current_ids: Tensor) -> Tensor:
        """Return which slots in use hold no example of ``current_ids`` [B]: bool, [N]."""
        return ~self._is_of(current_ids.to(self.device))

    def similarity(self, addresses: Addresses) -> Tensor:
        """Return cosines of B addresses with the slots in use, float32, shape [B, N]."""
        assert self.address_table is not None
        return self.address_table.similarity(addresses, self._size)

    def inherit(self, example_ids: Tensor, seen: int) -> None:
        """Mark all stored pairs as inherited, with new ``example_ids`` [N] of negative origins;
        ``seen`` is the number of pairs that have been offered to the memory so far.
        """
        self.example_ids.copy_(example_ids)
        self._seen = self._seen_before = max(seen, self._size)
        self._offered.clear()
        self._regroup()

    def mark_offered(self, example_ids: Tensor) -> None:
        """Record that examples [n] were offered before, of which ``restore`` knows the number."""
        self._offered.update(example_ids.tolist())

    def _columns(self) -> dict[str, Tensor]:
        """Return the tensors with a row for each slot, by their names in a memory file."""
        table = self.address_table
        return {
            "example_ids": self._example_ids,
            "scores": self._scores,
            "replay_counts": self._replay_counts,
            **({} if table is None else table.columns),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the slots in use, by the names of tensors in a memory file. All but the tokens
        are views.
        """
        used = {name: rows[: self._size] for name, rows in self._columns().items()}
        return {**used, **self._segments.tensors(self._size)}

    def load(self, tensors: Mapping[str, Tensor], at: int = 0) -> None:
        """Copy slots from :meth:`tensors` of another memory.

        Args:
            tensors: without addresses if the caller stores these later.
            at: the first slot to replace. Slots before it are kept, those after the last freed.
        """
        stop = self._size = at + len(tensors["example_ids"])
        for name, rows in self._columns().items():
            if name in tensors:
                rows[at:stop] = tensors[name]
        self._segments.load(tensors, at)
        if self._retain.by_target:
            self._marks[at:stop] = marks(self.segments(range(at, stop)), self._seed)
        self._regroup()

    @property
    def state(self) -> MemoryState:
        """Settings and counters."""
        table = self.address_table
        return MemoryState(
            self.capacity,
            self.on_revisit,
            (self._seen, self._seen_before),
            NoAddresses() if table is None else table.state,
        )

    def restore(self, state: MemoryState, tensors: Mapping[str, Tensor]) -> None:
        """Continue from the state and the tensors of another memory, at most as large.

        Raises:
            ValueError: if ``on_revisit`` or the addresses differ.
        """
        if self.on_revisit != state.on_revisit:
            raise ValueError(
                f"replay.on_revisit must be the checkpoint's {state.on_revisit!r}, "
                f"got {self.on_revisit!r}; resume with the value the run started with"
            )
        if self.address_table is not None:
            self.address_table.restore(state.addresses)
        self.load(tensors)
        self._seen, self._seen_before = state.seen

    def _errors(self, errors: Tensor) -> Tensor:
        errors = errors.detach().to(self.device, torch.float32)
        require_finite("errors", errors)
        return errors
