"""The keys of the section ``replay``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from erjepa.replay.registry import RETENTIONS, SELECTIONS
from erjepa.replay.state import (
    AddressState,
    DenseAddresses,
    NoAddresses,
    OnRevisit,
    SparseAddresses,
)

Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """What is replayed, with which weight, and what the memory keeps.

    The comments in ``llama3_2_1b_synth.yaml`` explain each key. Types and bounds are checked for
    values from a config only; combinations of keys are always checked.

    Raises:
        ValueError: if keys conflict; the message names them and says what to do.
    """

    weight: NotNegative | Literal["auto"] = 1.0
    weight_min: Positive = 0.25
    weight_max: Positive = 4.0
    budget: Count | None = None
    share: Annotated[float, Field(ge=0.01, le=0.9)] | None = None
    draw_from: Literal["all", "inherited"] = "all"
    draw_by: Literal["size", "origin"] = "size"
    selection: str = "content"
    mix: Annotated[float, Field(ge=0, le=1)] = 0.5
    priority_exponent: NotNegative = 0.6
    neighbors: Count = 4
    neighbor_order: Literal["batch", "round_robin"] = "batch"
    fill: bool = False
    capacity: Count = 10000
    on_revisit: OnRevisit = "refresh"
    retention: str = "score"
    reserve: Annotated[float, Field(ge=0, lt=1)] = 0.0
    score: Literal["jepa", "lm"] = "jepa"
    views: bool = True
    score_update_rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    address: Literal["sparse", "dense", "none"] = "sparse"
    address_dim: Count | None = None
    address_top_k: Count | None = None
    init_from: str | list[str] | None = None
    init_addresses: Literal["kept", "recomputed"] = "kept"
    init_scores: Literal["kept", "recomputed"] | None = None

    def __post_init__(self) -> None:
        rule = SELECTIONS.find(self.selection)
        RETENTIONS.find(self.retention)
        if self.weight_min > self.weight_max:
            raise ValueError(
                f"replay.weight_min must be at most replay.weight_max ({self.weight_max}), "
                f"got {self.weight_min}; between them replay.weight=auto adapts"
            )
        if self.init_from is not None and not rule.of_memory:
            raise ValueError(
                f"replay.init_from starts with a stored memory, which replay.selection="
                f"{self.selection} never replays; choose another selection"
            )
        if not self.views and self.score == "jepa":
            raise ValueError(
                "replay.views=False replays the next-token loss alone, which has no JEPA "
                "error to score by; set replay.score=lm"
            )
        if self.address == "none" and rule.needs_addresses:
            raise ValueError(
                f"replay.address=none stores no addresses, which replay.selection="
                f"{self.selection} needs; set it to sparse or dense"
            )
        if self.address_dim is not None:
            self._top_k(self.address_dim)
        if self.share is not None and self.weight:
            self._check_share()

    @property
    def needs_addresses(self) -> bool:
        return SELECTIONS.find(self.selection).needs_addresses

    @property
    def start_from(self) -> list[str]:
        """``init_from`` as a list of runs or checkpoints."""
        if isinstance(self.init_from, list):
            return self.init_from
        return [] if self.init_from is None else [self.init_from]

    def addresses(self, embed_dim: int, seed: int) -> AddressState:
        """Return how addresses are computed from source embeddings of size ``embed_dim``.

        Raises:
            ValueError: if ``address_top_k`` is larger than the default ``address_dim``.
        """
        if self.address == "none":
            return NoAddresses()
        if self.address == "dense":
            return DenseAddresses(embed_dim)
        dim = self.address_dim or 4 * embed_dim
        return SparseAddresses(embed_dim, dim, self._top_k(dim), seed)

    def _top_k(self, dim: int) -> int:
        """Return the number K of entries that addresses of length ``dim`` keep."""
        top_k = self.address_top_k or max(1, dim // 32)
        if top_k > dim:
            raise ValueError(
                f"replay.address_top_k must be at most replay.address_dim ({dim}), got "
                f"{top_k}; keep fewer entries or widen the address"
            )
        return top_k

    def _check_share(self) -> None:
        if self.budget is not None:
            raise ValueError(
                f"replay.share={self.share} makes replayed pairs a part of the step, "
                f"replay.budget={self.budget} adds them to it; set one of the two"
            )
        if self.weight != 1 or not self.views:
            raise ValueError(
                f"replay.share={self.share} trains replayed pairs as it does new ones; leave "
                f"replay.weight at 1 and replay.views at True, got {self.weight!r} and "
                f"{self.views}"
            )
        if not SELECTIONS.find(self.selection).draws_early:
            fitting = ", ".join(SELECTIONS.names(lambda rule: rule.draws_early))
            raise ValueError(
                f"replay.share={self.share} draws before the embeddings of a step are known; "
                f"replay.selection={self.selection} needs them. Set it to one of {fitting}, set "
                "replay.budget instead, or register your own rule with "
                "@SELECTIONS.register(NAME, needs_addresses=False)"
            )
