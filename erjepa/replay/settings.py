"""The keys of the `replay:` section, checked."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from erjepa.replay.retention import resolve_retention
from erjepa.replay.selection import (
    NEIGHBOR_ORDERS,
    needs_addresses,
    resolve_selection,
)


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """What is replayed, how much it counts, and what the memory keeps.

    Args:
        weight (float | str): weight of the replay loss, beta, for the caller, who has the loss;
            "auto": see ``ReplayWeight``.
        weight_min (float): bounds of "auto", and
        weight_max (float): likewise.
        budget (int | None): most pairs replayed in a step, R; None is the step's pairs.
        share (float | None): fraction of a step's pairs that are replayed ones, which take
            the place of new ones, for the caller; None adds the budget to the new pairs.
        draw_from (str): which slots are drawn: all, or inherited, those of earlier runs, which
            then keep their slots beside the capacity.
        draw_by (str): size draws from all slots alike; origin draws equally often from each
            dataset, however many slots it has.
        selection (str): content, uniform, hard, mixed, prioritized, current_batch (the step's
            own pairs as a control), or the dotted path of a function like those in ``selection.py``.
        mix (float): share of the budget that mixed selection draws uniformly; the rest is
            by content.
        priority_exponent (float): alpha of prioritized selection.
        neighbors (int): slots retrieved per source by content selection, kappa.
        neighbor_order (str): how it lists them: batch (the first source's, then the
            second's, ...) or round_robin (every source's nearest, then every second, ...).
        fill (bool): repeat a shorter content selection up to the budget.
        capacity (int): slots in the memory, M.
        on_revisit (str): keep, refresh or append, see ``EpisodicMemory``.
        retention (str): which slot of a full memory makes room: score (the paper's rule),
            reservoir, balanced or surprise (both over origins), or the dotted path of a function like those
            in ``retention.py``.
        reserve (float): share of the slots that inherited pairs keep.
        score (str): what the errors are, for the caller, who computes them: jepa, or lm, the
            cross-entropy a label.
        views (bool): whether the JEPA loss of replayed pairs is trained on; for the caller.
        score_update_rate (float): weight of a new error in the running one, eta.
        address (str): sparse (random projection, Top-K), dense (the embedding) or none, where
            nothing reads it.
        address_dim (int | None): size of a sparse address, S; None is 4 H.
        address_top_k (int | None): entries kept of it, K; None is S / 32, at least 1.
        init_from (str | list[str] | None): the run or checkpoint whose memory this run starts
            with, or several, whose memories merge; for the caller, and so is
        init_addresses (str): kept, or recomputed under the model that the run starts from; and
        init_scores (str | None): likewise; None recomputes them where they are of another
            error.

    Raises:
        ValueError: for a setting that is wrong; it names the key as the configuration does,
            the value, and what to do.
    """

    weight: float | Literal["auto"] = 1.0
    weight_min: float = 0.25
    weight_max: float = 4.0
    budget: int | None = None
    share: float | None = None
    draw_from: str = "all"
    draw_by: str = "size"
    selection: str = "content"
    mix: float = 0.5
    priority_exponent: float = 0.6
    neighbors: int = 4
    neighbor_order: str = "batch"
    fill: bool = False
    capacity: int = 10000
    on_revisit: str = "refresh"
    retention: str = "score"
    reserve: float = 0.0
    score: str = "jepa"
    views: bool = True
    score_update_rate: float = 0.1
    address: str = "sparse"
    address_dim: int | None = None
    address_top_k: int | None = None
    init_from: str | list[str] | None = None
    init_addresses: str = "kept"
    init_scores: str | None = None

    def __post_init__(self) -> None:
        self._check_weight()
        self._check_selection()
        self._check_share()
        self._check_memory()
        self._check_scores()
        self._check_addresses()

    @property
    def start_from(self) -> list[str]:
        """The runs or checkpoints of ``init_from``."""
        paths = self.init_from
        return paths if isinstance(paths, list) else [] if paths is None else [paths]

    def sparse_shape(self, embed_dim: int) -> tuple[int, int]:
        """Length S of a sparse address of embeddings of size ``embed_dim``, and its entries K."""
        dim = self.address_dim or 4 * embed_dim
        return dim, self.address_top_k or max(1, dim // 32)

    def _check_weight(self) -> None:
        if self.weight != "auto" and not (_is_finite(self.weight) and self.weight >= 0):
            raise ValueError(
                f"replay.weight must be a finite number of at least 0, or auto, got "
                f"{self.weight!r}; 0 trains without replay"
            )
        for key in ("weight_min", "weight_max"):
            bound = getattr(self, key)
            if not (_is_finite(bound) and bound > 0):
                raise ValueError(
                    f"replay.{key} must be a finite number above 0, got {bound!r}; it bounds "
                    f"replay.weight=auto"
                )
        if self.weight_min > self.weight_max:
            raise ValueError(
                f"replay.weight_min must be at most replay.weight_max ({self.weight_max}), "
                f"got {self.weight_min}; between them replay.weight=auto adapts"
            )

    def _check_selection(self) -> None:
        if self.budget is not None:
            self._at_least_one("budget", "set replay.weight=0 to replay nothing")
        if self.selection != "current_batch":
            resolve_selection(self.selection)
        elif self.init_from is not None:
            raise ValueError(
                "replay.init_from carries a memory on, which replay.selection=current_batch "
                "never replays; choose another selection"
            )
        if not (_is_finite(self.mix) and 0 <= self.mix <= 1):
            raise ValueError(
                f"replay.mix must lie between 0 and 1, got {self.mix!r}; it is the share of "
                f"the budget that mixed selection draws uniformly"
            )
        if not (_is_finite(self.priority_exponent) and self.priority_exponent >= 0):
            raise ValueError(
                f"replay.priority_exponent must be a finite number of at least 0, got "
                f"{self.priority_exponent!r}; 0 draws uniformly"
            )
        self._at_least_one("neighbors", "it counts the slots retrieved per source")
        self._one_of("neighbor_order", NEIGHBOR_ORDERS)
        self._boolean("fill")

    def _check_share(self) -> None:
        self._one_of("draw_from", ("all", "inherited"))
        self._one_of("draw_by", ("size", "origin"))
        if self.share is None or not self.weight:
            return
        if not (_is_finite(self.share) and 0.01 <= self.share <= 0.9):
            raise ValueError(
                f"replay.share must lie between 0.01 and 0.9, got {self.share!r}; it is the "
                f"fraction of a step's pairs that are replayed ones"
            )
        if self.budget is not None:
            raise ValueError(
                f"replay.share={self.share} makes room for replayed pairs in the step, "
                f"replay.budget={self.budget} adds them to it; set one of the two"
            )
        if self.weight != 1 or not self.views:
            raise ValueError(
                f"replay.share={self.share} trains replayed pairs as it does new ones; leave "
                f"replay.weight at 1 and replay.views at True, got {self.weight!r} and "
                f"{self.views}"
            )
        if needs_addresses(self.selection) or self.selection == "current_batch":
            raise ValueError(
                f"replay.share={self.share} draws before the embeddings of a step are known; "
                f"replay.selection={self.selection} needs them. Set it to uniform, hard or "
                f"prioritized, or set replay.budget instead"
            )

    def _check_memory(self) -> None:
        self._at_least_one("capacity", "set replay.weight=0 to train without a memory")
        self._one_of("on_revisit", ("keep", "refresh", "append"))
        resolve_retention(self.retention)
        if not (_is_finite(self.reserve) and 0 <= self.reserve < 1):
            raise ValueError(
                f"replay.reserve must be at least 0 and below 1, got {self.reserve!r}; it is "
                f"the share of the slots that inherited pairs keep"
            )
        self._one_of("init_addresses", ("kept", "recomputed"))
        if self.init_scores is not None:
            self._one_of("init_scores", ("kept", "recomputed"))

    def _check_scores(self) -> None:
        self._one_of("score", ("jepa", "lm"))
        self._boolean("views")
        if not self.views and self.score == "jepa":
            raise ValueError(
                "replay.views=False replays the next-token loss alone, which has no JEPA "
                "error to score by; set replay.score=lm"
            )
        rate = self.score_update_rate
        if not (_is_finite(rate) and 0 < rate <= 1):
            raise ValueError(
                f"replay.score_update_rate must be above 0 and at most 1, got {rate!r}; it "
                f"is the weight of a new error in the running one"
            )

    def _check_addresses(self) -> None:
        self._one_of("address", ("sparse", "dense", "none"))
        if self.address == "none" and needs_addresses(self.selection):
            raise ValueError(
                f"replay.address=none keeps nothing that replay.selection={self.selection} "
                f"could look at; set it to sparse or dense"
            )
        if self.address_dim is not None:
            self._at_least_one("address_dim", "null means 4 x the embedding size")
        if self.address_top_k is not None:
            self._at_least_one("address_top_k", "null means address_dim / 32")
            if self.address_dim and self.address_top_k > self.address_dim:
                raise ValueError(
                    f"replay.address_top_k must be at most replay.address_dim "
                    f"({self.address_dim}), got {self.address_top_k}; keep fewer entries or "
                    f"widen the address"
                )

    def _at_least_one(self, key: str, advice: str) -> None:
        value = getattr(self, key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(
                f"replay.{key} must be a whole number, got {value!r}; {advice}"
            )
        if value < 1:
            raise ValueError(f"replay.{key} must be at least 1, got {value}; {advice}")

    def _boolean(self, key: str) -> None:
        value = getattr(self, key)
        if not isinstance(value, bool):
            raise ValueError(f"replay.{key} must be True or False, got {value!r}")

    def _one_of(self, key: str, known: Collection[str]) -> None:
        value = getattr(self, key)
        if value not in known:
            raise ValueError(
                f"replay.{key} must be one of {', '.join(known)}, got {value!r}"
            )


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)
