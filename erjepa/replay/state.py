"""The state of episodic replay apart from its tensors: settings and counters."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, FiniteFloat

OnRevisit = Literal["keep", "refresh", "append"]
Natural = Annotated[int, Field(ge=0, lt=2**63)]
_Count = Annotated[int, Field(ge=1, lt=2**31)]
# Dtype and width of the tensors with a row for each slot, by their names in a memory file.
Columns = dict[str, tuple[torch.dtype, int]]


@dataclass(frozen=True)
class SparseAddresses:
    """How sparse addresses are computed."""

    embed_dim: _Count
    address_dim: _Count
    address_top_k: _Count
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)]

    @property
    def columns(self) -> Columns:
        narrow = torch.int16 if self.address_dim <= 32767 else torch.int32
        return {
            "address_values": (torch.float32, self.address_top_k),
            "address_indices": (narrow, self.address_top_k),
        }


@dataclass(frozen=True)
class DenseAddresses:
    """How dense addresses are computed."""

    embed_dim: _Count

    @property
    def columns(self) -> Columns:
        return {"address_values": (torch.float32, self.embed_dim)}


@dataclass(frozen=True)
class NoAddresses:
    """The slots have no addresses."""

    @property
    def columns(self) -> Columns:
        return {}


AddressState = Annotated[
    SparseAddresses | DenseAddresses | NoAddresses, Field(union_mode="left_to_right")
]


@dataclass(frozen=True)
class MemoryState:
    """The state of an ``EpisodicMemory``.

    Args:
        seen: number of pairs offered to the memory so far, and before it was inherited.
    """

    capacity: Natural
    on_revisit: OnRevisit
    seen: tuple[Natural, Natural]
    addresses: AddressState


@dataclass(frozen=True)
class WeightState:
    """The running means of ``replay.weight=auto``."""

    means: tuple[FiniteFloat, FiniteFloat] | None


@dataclass(frozen=True)
class ReplayState:
    """The state of an ``EpisodicReplay``; ``weight`` is ``None`` if it is fixed."""

    memory: MemoryState
    weight: WeightState | None = None
