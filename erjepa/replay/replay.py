"""What a training recipe holds: memory, selection and randomness behind five calls."""

import math
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from erjepa.replay.addresses import Addresses, DenseAddressTable, SparseAddressTable
from erjepa.replay.memory import EpisodicMemory, Segments
from erjepa.replay.retention import resolve_retention
from erjepa.replay.selection import NEIGHBOR_ORDERS, resolve_selection


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
        weight (float): weight of the replay loss, beta; for the caller, who has the loss.
        budget (int | None): most pairs replayed in a step, R; None is the step's pairs.
        selection (str): content, uniform, hard, mixed, current_batch (the step's own pairs
            as a control), or the dotted path of a function like those in ``selection.py``.
        mix (float): share of the budget that mixed selection draws uniformly; the rest is
            by content.
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
        score_update_rate (float): weight of a new error in the running one, eta.
        address (str): sparse (random projection, Top-K) or dense (the embedding).
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
        weight: float = 1.0,
        budget: int | None = None,
        selection: str = "content",
        mix: float = 0.5,
        neighbors: int = 4,
        neighbor_order: str = "batch",
        fill: bool = False,
        capacity: int = 10000,
        on_revisit: str = "refresh",
        retention: str = "score",
        reserve: float = 0.0,
        score_update_rate: float = 0.1,
        address: str = "sparse",
        address_dim: int | None = None,
        address_top_k: int | None = None,
    ) -> None:
        validate_replay(
            weight=weight,
            budget=budget,
            selection=selection,
            mix=mix,
            neighbors=neighbors,
            neighbor_order=neighbor_order,
            fill=fill,
            capacity=capacity,
            on_revisit=on_revisit,
            retention=retention,
            reserve=reserve,
            score_update_rate=score_update_rate,
            address=address,
            address_dim=address_dim,
            address_top_k=address_top_k,
        )
        self.weight = weight
        self.budget = budget
        self.neighbors = neighbors
        self.fill = fill
        self.seed = seed
        control = selection == "current_batch"
        self._select = (
            None if control else resolve_selection(selection, neighbor_order, mix)
        )
        self._generator = torch.Generator("cpu").manual_seed(seed)
        table: SparseAddressTable | DenseAddressTable
        if address == "dense":
            table = DenseAddressTable(capacity, embed_dim, device=device)
        else:
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

    def encode(self, source_embeddings: Tensor) -> Addresses:
        """Addresses of z^u ([B, H], any float dtype), by which the step's pairs draw from
        the memory and are found in it later.
        """
        return self.memory.address_table.encode(source_embeddings)

    def draw(
        self, example_ids: Tensor, segments: Sequence[Segments], addresses: Addresses
    ) -> ReplayBatch:
        """Chooses the pairs to replay next to the current ones.

        Args:
            example_ids (Tensor): examples of the whole step, int64, shape [B]; their own
                slots are never drawn.
            segments (Sequence[Segments]): their B tuples of token segments.
            addresses (Addresses): B of them, from ``encode``.

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
        """Takes in the JEPA errors [n] of the n pairs of ``batch``, as replayed."""
        if batch.slots is not None:
            self.memory.refresh(batch.slots, errors)

    def write(
        self,
        example_ids: Tensor,
        segments: Sequence[Segments],
        addresses: Addresses,
        errors: Tensor,
    ) -> None:
        """Stores the step's B pairs with their JEPA errors [B]; shapes as in ``draw``."""
        self.memory.write(example_ids, segments, addresses, errors, self._generator)

    def state_dict(self, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        """All that later draws depend on, loadable with ``weights_only=True``; of the slots
        those from ``start`` to ``stop``.
        """
        return {
            "generator": self._generator.get_state(),
            "memory": self.memory.state_dict(start, stop),
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


def validate_replay(
    *,
    weight: float = 1.0,
    budget: int | None = None,
    selection: str = "content",
    mix: float = 0.5,
    neighbors: int = 4,
    neighbor_order: str = "batch",
    fill: bool = False,
    capacity: int = 10000,
    on_revisit: str = "refresh",
    retention: str = "score",
    reserve: float = 0.0,
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
    if not _is_number(weight) or not math.isfinite(weight) or weight < 0:
        raise ValueError(
            f"replay.weight must be a finite number of at least 0, got {weight!r}; "
            f"0 trains without replay"
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
    if not _is_number(score_update_rate) or not 0 < score_update_rate < 1:
        raise ValueError(
            f"replay.score_update_rate must lie between 0 and 1, both excluded, got "
            f"{score_update_rate!r}; it is the weight of a new error in the running one"
        )
    _one_of("address", address, ("sparse", "dense"))
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
    is_dense = address == "dense"
    projection = 0 if is_dense else 4 * dim * embed_dim
    # Id, score, count and the place of its tokens; the address.
    slot = 8 + 4 + 4 + 8
    slot += 4 * embed_dim if is_dense else top_k * (4 + (2 if dim <= 32767 else 4))
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
