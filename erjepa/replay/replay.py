"""What a training recipe holds: memory, selection and randomness behind five calls."""

import math
from array import array
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from erjepa.replay.addresses import Addresses, DenseAddressTable, SparseAddressTable
from erjepa.replay.memory import EpisodicMemory, Segments
from erjepa.replay.retention import resolve_retention
from erjepa.replay.selection import (
    NEIGHBOR_ORDERS,
    needs_addresses,
    resolve_selection,
)
from erjepa.replay.weight import ReplayWeight


class ReplayBatch(NamedTuple):
    """The pairs to replay in one step.

    Attributes:
        example_ids (list[int]): the examples they are.
        segments (list[tuple[array, ...]]): the token segments of each, at most R of them.
        slots (list[int] | None): the slots they come from; None when they are the
            current pairs, which ``refresh`` then leaves alone.
    """

    example_ids: list[int]
    segments: list[tuple[array, ...]]
    slots: list[int] | None


class EpisodicReplay:
    """Episodic replay for one training run; the arguments are the `replay:` keys.

    A step calls ``encode`` and ``draw``, trains on what it drew, then calls ``refresh`` and
    ``write``. Every rank calls them with the pairs of the whole step in one order, so that
    all memories stay equal.

    Args:
        embed_dim (int): size of a source embedding, H.
        seed (int): seed of the address projection and of random selections.
        device (torch.device | str): where addresses, scores and counts live.
        weight (float | str): weight of the replay loss, beta, for the caller, who has the loss;
            "auto": see ``ReplayWeight``.
        weight_min (float): bounds of "auto", and
        weight_max (float): likewise.
        budget (int | None): most pairs replayed in a step, R; None is the step's pairs.
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
            reservoir, balanced (over origins), or the dotted path of a function like those
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

    Raises:
        ValueError: if a setting is wrong; the message names its key.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        seed: int,
        device: torch.device | str = "cpu",
        weight: float | Literal["auto"] = 1.0,
        weight_min: float = 0.25,
        weight_max: float = 4.0,
        budget: int | None = None,
        selection: str = "content",
        mix: float = 0.5,
        priority_exponent: float = 0.6,
        neighbors: int = 4,
        neighbor_order: str = "batch",
        fill: bool = False,
        capacity: int = 10000,
        on_revisit: str = "refresh",
        retention: str = "score",
        reserve: float = 0.0,
        score: str = "jepa",
        views: bool = True,
        score_update_rate: float = 0.1,
        address: str = "sparse",
        address_dim: int | None = None,
        address_top_k: int | None = None,
    ) -> None:
        validate_replay(
            weight=weight,
            weight_min=weight_min,
            weight_max=weight_max,
            budget=budget,
            selection=selection,
            mix=mix,
            priority_exponent=priority_exponent,
            neighbors=neighbors,
            neighbor_order=neighbor_order,
            fill=fill,
            capacity=capacity,
            on_revisit=on_revisit,
            retention=retention,
            reserve=reserve,
            score=score,
            views=views,
            score_update_rate=score_update_rate,
            address=address,
            address_dim=address_dim,
            address_top_k=address_top_k,
        )
        self._weight = ReplayWeight(weight, weight_min, weight_max)
        self.score = score
        self.budget = budget
        self.neighbors = neighbors
        self.fill = fill
        self.seed = seed
        control = selection == "current_batch"
        self._select = (
            None
            if control
            else resolve_selection(selection, neighbor_order, mix, priority_exponent)
        )
        self._generator = torch.Generator("cpu").manual_seed(seed)
        table: SparseAddressTable | DenseAddressTable | None = None
        if address == "dense":
            table = DenseAddressTable(capacity, embed_dim, device=device)
        elif address == "sparse":
            dim, top_k = _sparse_shape(embed_dim, address_dim, address_top_k)
            table = SparseAddressTable(
                capacity,
                embed_dim,
                address_dim=dim,
                top_k=top_k,
                seed=seed,
                device=device,
            )
        self.memory = EpisodicMemory(
            capacity,
            table,
            on_revisit=on_revisit,
            retain=resolve_retention(retention),
            reserve=reserve,
            score_update_rate=score_update_rate,
            device=device,
        )

    def __len__(self) -> int:
        """Number of slots in use."""
        return len(self.memory)

    @property
    def weight(self) -> float:
        """beta of the next step."""
        return self._weight.value

    @property
    def adapts_weight(self) -> bool:
        """Whether it changes from step to step."""
        return self._weight.is_auto

    def encode(self, source_embeddings: Tensor) -> Addresses | None:
        """Addresses of z^u ([B, H], any float dtype), by which the step's pairs draw from
        the memory and are found in it later; None where the memory keeps none.
        """
        if self.memory.address_table is None:
            return None
        return self.memory.address_table.encode(source_embeddings)

    def draw(
        self,
        example_ids: Tensor,
        segments: Sequence[Segments],
        addresses: Addresses | None,
    ) -> ReplayBatch:
        """Chooses the pairs to replay next to the current ones.

        Args:
            example_ids (Tensor): examples of the whole step, int64, shape [B]; their own
                slots are never drawn.
            segments (Sequence[Segments]): their B tuples of token segments.
            addresses (Addresses | None): B of them, from ``encode``.

        Returns:
            ReplayBatch: at most R pairs; none while the memory holds no other example.

        Raises:
            ValueError: if a user's selection exceeds the budget or what is eligible.
        """
        budget = len(segments) if self.budget is None else self.budget
        if self._select is None:
            return ReplayBatch(
                example_ids.tolist()[:budget], list(segments[:budget]), None
            )
        eligible = self.memory.eligible(example_ids)
        slots = self._select(
            self.memory,
            addresses,
            eligible,
            budget=budget,
            neighbors=self.neighbors,
            fill=self.fill,
            generator=self._generator,
        )
        in_use = all(0 <= slot < len(self) for slot in slots)
        if len(slots) > budget or not (in_use and bool(eligible[slots].all())):
            raise ValueError(
                f"replay.selection must return at most {budget} slots, all of them "
                f"eligible; it returned {slots}"
            )
        drawn = self.memory.example_ids[slots].tolist()
        return ReplayBatch(drawn, self.memory.segments(slots), slots)

    def refresh(self, batch: ReplayBatch, errors: Tensor) -> None:
        """Takes in the errors [n] of the n pairs of ``batch``, as replayed."""
        if batch.slots is not None:
            self.memory.refresh(batch.slots, errors)

    def adapt_weight(self, batch: ReplayBatch, new: Tensor, replayed: Tensor) -> None:
        """Takes in the cross-entropy a label of the step's new pairs, and of ``batch``."""
        if self.adapts_weight and batch.example_ids:
            self._weight.update(new.item(), replayed.item())

    def write(
        self,
        example_ids: Tensor,
        segments: Sequence[Segments],
        addresses: Addresses | None,
        errors: Tensor,
    ) -> None:
        """Stores the step's B pairs with their errors [B]; shapes as in ``draw``."""
        self.memory.write(example_ids, segments, addresses, errors, self._generator)

    def state_dict(self, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        """All that later draws depend on, loadable with ``weights_only=True``; of the slots
        those from ``start`` to ``stop``.
        """
        return {
            "generator": self._generator.get_state(),
            "memory": self.memory.state_dict(start, stop),
            **({"weight": self._weight.state_dict()} if self.adapts_weight else {}),
        }

    def load_state_dict(self, state: dict[str, Any], start: int = 0) -> None:
        """Continues where ``state_dict`` was taken, its random draws included, whatever the
        seed of this run.

        Args:
            state (dict[str, Any]): of one range of slots.
            start (int): where to put them, see ``EpisodicMemory.load_state_dict``.

        Raises:
            ValueError: if the memory's settings differ from the saved ones.
        """
        self.memory.load_state_dict(state["memory"], start)
        self._generator.set_state(state["generator"])
        self._weight.load_state_dict(state.get("weight", {}))


def validate_replay(
    *,
    weight: float | Literal["auto"] = 1.0,
    weight_min: float = 0.25,
    weight_max: float = 4.0,
    budget: int | None = None,
    selection: str = "content",
    mix: float = 0.5,
    priority_exponent: float = 0.6,
    neighbors: int = 4,
    neighbor_order: str = "batch",
    fill: bool = False,
    capacity: int = 10000,
    on_revisit: str = "refresh",
    retention: str = "score",
    reserve: float = 0.0,
    score: str = "jepa",
    views: bool = True,
    score_update_rate: float = 0.1,
    address: str = "sparse",
    address_dim: int | None = None,
    address_top_k: int | None = None,
    init_from: str | None = None,
    init_addresses: str = "kept",
) -> None:
    """Checks the replay settings; the arguments are those of ``EpisodicReplay``, and where the
    memory comes from at the start of a run: ``init_from``, a run or checkpoint, whose addresses
    are "kept" or "recomputed" (``init_addresses``).

    Raises:
        ValueError: for the first setting that is wrong; it names the key as the
            configuration does, the value, and what to do.
    """
    if weight != "auto" and not (
        _is_number(weight) and math.isfinite(weight) and weight >= 0
    ):
        raise ValueError(
            f"replay.weight must be a finite number of at least 0, or auto, got {weight!r}; "
            f"0 trains without replay"
        )
    for key, bound in (("weight_min", weight_min), ("weight_max", weight_max)):
        if not (_is_number(bound) and math.isfinite(bound) and bound > 0):
            raise ValueError(
                f"replay.{key} must be a finite number above 0, got {bound!r}; it bounds "
                f"replay.weight=auto"
            )
    if weight_min > weight_max:
        raise ValueError(
            f"replay.weight_min must be at most replay.weight_max ({weight_max}), got "
            f"{weight_min}; between them replay.weight=auto adapts"
        )
    if budget is not None:
        _at_least_one("budget", budget, "set replay.weight=0 to replay nothing")
    if selection != "current_batch":
        resolve_selection(selection)
    if not _is_number(mix) or not 0 <= mix <= 1:
        raise ValueError(
            f"replay.mix must lie between 0 and 1, got {mix!r}; it is the share of the "
            f"budget that mixed selection draws uniformly"
        )
    if not (
        _is_number(priority_exponent)
        and math.isfinite(priority_exponent)
        and priority_exponent >= 0
    ):
        raise ValueError(
            f"replay.priority_exponent must be a finite number of at least 0, got "
            f"{priority_exponent!r}; 0 draws uniformly"
        )
    _at_least_one("neighbors", neighbors, "it counts the slots retrieved per source")
    _one_of("neighbor_order", neighbor_order, tuple(NEIGHBOR_ORDERS))
    if not isinstance(fill, bool):
        raise ValueError(f"replay.fill must be True or False, got {fill!r}")
    _at_least_one("capacity", capacity, "set replay.weight=0 to train without a memory")
    _one_of("on_revisit", on_revisit, ("keep", "refresh", "append"))
    resolve_retention(retention)
    if not _is_number(reserve) or not 0 <= reserve < 1:
        raise ValueError(
            f"replay.reserve must be at least 0 and below 1, got {reserve!r}; it is the "
            f"share of the slots that inherited pairs keep"
        )
    _one_of("score", score, ("jepa", "lm"))
    if not isinstance(views, bool):
        raise ValueError(f"replay.views must be True or False, got {views!r}")
    if not views and score == "jepa":
        raise ValueError(
            "replay.views=False replays the next-token loss alone, which has no JEPA error "
            "to score by; set replay.score=lm"
        )
    if not _is_number(score_update_rate) or not 0 < score_update_rate <= 1:
        raise ValueError(
            f"replay.score_update_rate must be above 0 and at most 1, got "
            f"{score_update_rate!r}; it is the weight of a new error in the running one"
        )
    _one_of("address", address, ("sparse", "dense", "none"))
    if address == "none" and needs_addresses(selection):
        raise ValueError(
            f"replay.address=none keeps nothing that replay.selection={selection} could "
            f"look at; set it to sparse or dense"
        )
    _one_of("init_addresses", init_addresses, ("kept", "recomputed"))
    if init_from is not None and selection == "current_batch":
        raise ValueError(
            "replay.init_from carries a memory on, which replay.selection=current_batch "
            "never replays; choose another selection"
        )
    if address_dim is not None:
        _at_least_one("address_dim", address_dim, "null means 4 x the embedding size")
    if address_top_k is not None:
        _at_least_one("address_top_k", address_top_k, "null means address_dim / 32")
    if address_dim and address_top_k and address_top_k > address_dim:
        raise ValueError(
            f"replay.address_top_k must be at most replay.address_dim ({address_dim}), "
            f"got {address_top_k}; keep fewer entries or widen the address"
        )


def require_memory(
    available: int,
    embed_dim: int,
    *,
    capacity: int = 10000,
    address: str = "sparse",
    address_dim: int | None = None,
    address_top_k: int | None = None,
    **_: Any,
) -> None:
    """Find out before anything is allocated whether a memory has room.

    Args:
        available (int): bytes that there are.
        embed_dim (int): size of a source embedding, H.
        capacity (int): as for :class:`EpisodicReplay`, and so are the others; more of its
            arguments are taken and change nothing.
        address (str): see there.
        address_dim (int | None): see there.
        address_top_k (int | None): see there.

    Raises:
        ValueError: naming the keys and the bytes that they would take. The tokens of the
            stored pairs, some hundred bytes each, are not counted.
    """
    dim, top_k = _sparse_shape(embed_dim, address_dim, address_top_k)
    projection = 4 * dim * embed_dim if address == "sparse" else 0
    # Id, score, count and the place of its tokens; the address.
    slot = 8 + 4 + 4 + 8
    sizes = {"dense": 4 * embed_dim, "sparse": top_k * (4 + (2 if dim <= 32767 else 4))}
    slot += sizes.get(address, 0)
    if (taken := capacity * slot + projection) > available:
        raise ValueError(
            f"replay.capacity={capacity} slots of {slot:,} bytes and a projection of "
            f"{projection:,} take {taken:,} bytes; there are {available:,}. Set a smaller "
            "capacity, address_dim or address_top_k"
        )


def _sparse_shape(
    embed_dim: int, address_dim: int | None, address_top_k: int | None
) -> tuple[int, int]:
    """Length of a sparse address S, and its entries K."""
    dim = address_dim or 4 * embed_dim
    return dim, address_top_k or max(1, dim // 32)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _at_least_one(key: str, value: Any, advice: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(
            f"replay.{key} must be a whole number, got {value!r}; {advice}"
        )
    if value < 1:
        raise ValueError(f"replay.{key} must be at least 1, got {value}; {advice}")


def _one_of(key: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(
            f"replay.{key} must be one of {', '.join(known)}, got {value!r}"
        )
