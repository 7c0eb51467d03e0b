"""Episodic replay of a training run: its memory, selection rule, weight and random state."""

from array import array
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

import torch
from torch import Tensor

from erjepa.replay.addresses import Addresses, build_table
from erjepa.replay.episodic_memory import EpisodicMemory
from erjepa.replay.registry import RETENTIONS, SELECTIONS
from erjepa.replay.retention import origins
from erjepa.replay.segments import Segments
from erjepa.replay.selection import Request
from erjepa.replay.settings import ReplaySettings
from erjepa.replay.state import ReplayState, SparseAddresses
from erjepa.replay.weight import ReplayWeight


class ReplayBatch(NamedTuple):
    """The pairs to replay in one step."""

    example_ids: list[int]
    segments: list[tuple[array, ...]]
    slots: list[int] | None  # ``None`` for pairs of the step itself
    # Of the ids and slots of these pairs and all earlier writes; differs between ranks that draw
    # or store other examples.
    checksum: int = 0


class EpisodicReplay:
    """Episodic replay for one training run with source embeddings of size H (``embed_dim``).

    Each step calls ``encode`` and ``draw``, trains on the drawn pairs, then calls ``refresh`` and
    ``write``. Every rank makes these calls with the pairs of the whole step in the same order, so
    that all memories stay equal. ``seed`` determines the address projection and random draws.

    Args:
        reserved_slots: slots for inherited pairs, which are then never evicted, in addition to
            ``capacity``.

    Attributes:
        generator: of random draws.

    Raises:
        ValueError: if ``address_top_k`` is larger than the default ``address_dim``.
    """

    def __init__(
        self,
        settings: ReplaySettings,
        *,
        embed_dim: int,
        seed: int,
        device: torch.device | str = "cpu",
        reserved_slots: int = 0,
    ) -> None:
        self.settings = settings
        self._weight = ReplayWeight(
            settings.weight, settings.weight_min, settings.weight_max
        )
        self._selection = SELECTIONS.find(settings.selection)
        self.generator = torch.Generator("cpu").manual_seed(seed)
        capacity = settings.capacity + reserved_slots
        reserve = Fraction(str(settings.reserve))  # 0.29 of 100 is 29, not 28.999…
        addresses = settings.addresses(embed_dim, seed)
        self.memory = EpisodicMemory(
            capacity,
            build_table(capacity, addresses, device),
            on_revisit=settings.on_revisit,
            retain=RETENTIONS.find(settings.retention),
            reserved_slots=max(int(reserve * capacity), reserved_slots),
            score_update_rate=settings.score_update_rate,
            generator=self.generator,
            device=device,
        )

    def __len__(self) -> int:
        return len(self.memory)

    @property
    def weight(self) -> float:
        """beta of the next step."""
        return self._weight.value

    @property
    def adapts_weight(self) -> bool:
        return self._weight.is_auto

    def encode(self, source_embeddings: Tensor) -> Addresses | None:
        """Return the addresses of z^u ([B, H], any float dtype) that the step's pairs are compared
        and stored by; ``None`` if the memory has no addresses.
        """
        if self.memory.address_table is None:
            return None
        return self.memory.address_table.encode(source_embeddings)

    def draw(
        self,
        example_ids: Tensor,
        segments: Sequence[Segments],
        addresses: Addresses | None,
        budget: int | None = None,
    ) -> ReplayBatch:
        """Choose at most R pairs to replay along with the B pairs of the step.

        Stored pairs whose example is in the step are never drawn, so the result may be empty.

        Args:
            example_ids: int64, shape [B].
            addresses: from ``encode``.
            budget: R; ``None``: as in the settings.

        Raises:
            ValueError: if a custom selection returns anything but a list of at most R eligible
                slots.
        """
        settings = self.settings
        if budget is None:
            budget = len(segments) if settings.budget is None else settings.budget
        if not self._selection.of_memory:
            step = torch.ones(len(segments), dtype=torch.bool)
            rows = self._choose(addresses, step, min(budget, len(segments)))
            cut = [segments[row] for row in rows]
            return self._batch(example_ids[rows].tolist(), cut, None)
        eligible = self.memory.eligible(example_ids)
        if settings.draw_from == "inherited":
            eligible &= origins(self.memory.example_ids) < 0
        slots: list[int] = []
        for part, count in self._parts(eligible, budget):
            slots += self._choose(addresses, part, count)
        at = torch.tensor(slots, dtype=torch.int64, device=self.memory.device)
        columns = torch.stack([self.memory.example_ids[at], eligible[at].long()])
        drawn, flags = columns.tolist()  # one synchronization with the device
        if not all(flags):
            self._reject(slots, budget)
        return self._batch(drawn, self.memory.segments(slots), slots)

    def _batch(
        self, ids: list[int], segments: Any, slots: list[int] | None
    ) -> ReplayBatch:
        drawn = array("q", [*ids, *(slots or [])])
        return ReplayBatch(ids, segments, slots, crc32(drawn, self.memory.history))

    def _choose(
        self, addresses: Addresses | None, eligible: Tensor, budget: int
    ) -> list[int]:
        """Call the selection and check what it returns, except whether slots are eligible."""
        settings, generator = self.settings, self.generator
        request = Request(self.memory, addresses, eligible, budget, settings, generator)
        chosen = self._selection.choose(request)
        if not (
            isinstance(chosen, list)
            and len(chosen) <= budget
            and all(isinstance(i, int) and 0 <= i < len(eligible) for i in chosen)
        ):
            self._reject(chosen, budget)
        return chosen

    def _reject(self, chosen: Any, budget: int) -> NoReturn:
        raise ValueError(
            f"replay.selection={self.settings.selection} must return a list of at most "
            f"{budget} eligible slots, as int; it returned {' '.join(repr(chosen).split()):.200}"
        )

    def _parts(self, eligible: Tensor, budget: int) -> list[tuple[Tensor, int]]:
        """Return eligible slots and how many of them to draw, in one part or one per origin."""
        if self.settings.draw_by == "size":
            return [(eligible, budget)]
        origin = origins(self.memory.example_ids)
        present = origin[eligible].unique().tolist()
        if not present:
            return []
        each, left = divmod(budget, len(present))
        order = torch.randperm(len(present), generator=self.generator, device="cpu")
        counts = [each + (place < left) for place in order.tolist()]
        return [
            (eligible & (origin == name), count)
            for name, count in zip(present, counts, strict=True)
            if count
        ]

    def refresh(self, batch: ReplayBatch, errors: Tensor) -> None:
        """Update the memory with the errors [n] of the n replayed pairs of ``batch``."""
        if batch.slots is not None:
            self.memory.refresh(batch.slots, errors)

    def adapt_weight(self, batch: ReplayBatch, new: Tensor, replayed: Tensor) -> None:
        """Update beta with the cross-entropy per label of the new pairs and of ``batch``."""
        if self.adapts_weight and batch.example_ids:
            self._weight.update(new.item(), replayed.item())

    def write(
        self,
        example_ids: Tensor,
        segments: Sequence[Segments],
        addresses: Addresses | None,
        errors: Tensor,
    ) -> None:
        """Store the step's B pairs with their errors [B]; shapes as in ``draw``."""
        self.memory.write(example_ids, segments, addresses, errors)

    def tensors(self) -> dict[str, Tensor]:
        """Return the slots in use and the random state, by the names of tensors in a memory file.
        All but tokens and random state are views.
        """
        return {**self.memory.tensors(), "generator": self.generator.get_state()}

    @property
    def state(self) -> ReplayState:
        """All else that later draws depend on."""
        return ReplayState(self.memory.state, self._weight.state)

    def restore(self, state: ReplayState, tensors: Mapping[str, Tensor]) -> None:
        """Continue from the state and the tensors of another run. Random draws continue as in
        that run, whatever the seed of this one.

        Raises:
            ValueError: if the capacity is below the saved one, or other settings of the memory
                differ.
        """
        ours = self.settings.capacity
        saved = state.memory.capacity - (self.memory.capacity - ours)
        if ours < saved:
            raise ValueError(
                f"replay.capacity must be at least the checkpoint's {saved}, got {ours}; a "
                "memory can grow on resuming, not shrink"
            )
        self.generator.set_state(tensors["generator"])
        self.memory.restore(state.memory, tensors)
        self._weight.restore(state.weight)


def slot_bytes(settings: ReplaySettings, embed_dim: int) -> tuple[int, int]:
    """Return the bytes of a slot without its tokens and their lengths, and of the projection."""
    addresses, projection = settings.addresses(embed_dim, seed=0), 0
    if isinstance(addresses, SparseAddresses):
        projection = 4 * addresses.address_dim * embed_dim
    # Example id, score, replay count and the pointer to its tokens.
    slot = 8 + 4 + 4 + 8
    slot += sum(dtype.itemsize * n for dtype, n in addresses.columns.values())
    return slot, projection


def require_room(settings: ReplaySettings, embed_dim: int, available: int) -> None:
    """Raise a ValueError if the slots will not fit into ``available`` bytes. The tokens of stored
    pairs, a few hundred bytes each, are not counted.
    """
    slot, projection = slot_bytes(settings, embed_dim)
    if (taken := settings.capacity * slot + projection) > available:
        raise ValueError(
            f"replay.capacity={settings.capacity} slots of {slot:,} bytes and a projection "
            f"of {projection:,} take {taken:,} bytes; there are {available:,}. Set a smaller "
            "capacity, address_dim or address_top_k"
        )
