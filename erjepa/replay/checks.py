"""Checks of what reaches the memory: numbers of a step and states of a checkpoint."""

from typing import Any

from torch import Tensor


def finite(name: str, values: Tensor) -> None:
    """Raises a ValueError if one of ``values`` is nan or inf."""
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got nan or inf; the model diverged before they "
            f"reached the replay memory"
        )


def one_per_pair(name: str, values: Tensor, pairs: int) -> None:
    """Raises a ValueError unless the shape of ``values`` is [pairs]."""
    if values.shape != (pairs,):
        raise ValueError(
            f"{name} must have shape [{pairs}], one per pair, got {list(values.shape)}"
        )


def same_settings(saved: dict[str, Any], ours: dict[str, Any]) -> None:
    """Raises a ValueError unless two address states agree in kind and in every int."""
    if saved.keys() != ours.keys():
        raise ValueError(
            "replay.address differs from the checkpoint's (sparse in one, dense in the "
            "other); resume with the value the run was started with"
        )
    for key, value in ours.items():
        if isinstance(value, int) and saved[key] != value:
            name = f"replay.{key}" if key.startswith("address") else key
            raise ValueError(
                f"{name} is {value}, but the memory in the checkpoint was written with "
                f"{saved[key]}; resume with the value the run was started with"
            )
