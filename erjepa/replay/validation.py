"""Checks of the `replay:` section that need no model, so that they come first."""

import math
from typing import Any

from erjepa.replay.selection import NEIGHBOR_ORDERS, resolve_selection


def validate_replay(
    *,
    weight: float = 1.0,
    budget: int | None = None,
    selection: str = "content",
    neighbors: int = 4,
    neighbor_order: str = "batch",
    fill: bool = False,
    capacity: int = 10000,
    on_revisit: str = "refresh",
    score_update_rate: float = 0.1,
    address: str = "sparse",
    address_dim: int | None = None,
    address_top_k: int | None = None,
) -> None:
    """Checks the replay settings; the arguments are those of ``EpisodicReplay``.

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
    _at_least_one("neighbors", neighbors, "it counts the slots retrieved per source")
    _one_of("neighbor_order", neighbor_order, tuple(NEIGHBOR_ORDERS))
    if not isinstance(fill, bool):
        raise ValueError(f"replay.fill must be True or False, got {fill!r}")
    _at_least_one("capacity", capacity, "set replay.weight=0 to train without a memory")
    _one_of("on_revisit", on_revisit, ("keep", "refresh", "append"))
    if not _is_number(score_update_rate) or not 0 < score_update_rate < 1:
        raise ValueError(
            f"replay.score_update_rate must lie between 0 and 1, both excluded, got "
            f"{score_update_rate!r}; it is the weight of a new error in the running one"
        )
    _one_of("address", address, ("sparse", "dense"))
    if address_dim is not None:
        _at_least_one("address_dim", address_dim, "null means 4 x the embedding size")
    if address_top_k is not None:
        _at_least_one("address_top_k", address_top_k, "null means address_dim / 32")
    if None not in (address_dim, address_top_k) and address_top_k > address_dim:
        raise ValueError(
            f"replay.address_top_k must be at most replay.address_dim ({address_dim}), "
            f"got {address_top_k}; keep fewer entries or widen the address"
        )


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
