"""Collectives of the recipes, one process included."""

import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torchtune import training

T = TypeVar("T")

_LONG = timedelta(days=1)
_MARGIN = 30.0  # seconds in which heartbeats name a rank before collectives fail
_waits: dist.ProcessGroup | None = None


def init_process_group(device: torch.device, timeout: float) -> None:
    """Join the process group that the launcher describes, or form one of a single process.

    Tensors on the CPU can be reduced beside those of any device. A second group, over Gloo, is for
    waits that may take long: for rank 0, and for ranks with different amounts of work. A step may
    wait ``timeout`` seconds for a rank.
    """
    global _waits
    limit = timedelta(seconds=timeout + _MARGIN)
    backend = training.get_distributed_backend(
        device.type, offload_ops_to_cpu=device.type != "cpu"
    )
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=limit)
    else:
        dist.init_process_group(
            backend, timeout=limit, store=dist.HashStore(), rank=0, world_size=1
        )
    _waits = dist.new_group(backend="gloo", timeout=_LONG)


def gradient_scale(device: torch.device) -> float:
    """Factor of a loss by which FSDP2's reduced gradients are sums over ranks.

    FSDP2 reduces with ``ReduceOp.AVG``. NCCL averages; Gloo has summed in some releases of torch.
    One small reduction tells which.
    """
    world_size = dist.get_world_size()
    if world_size == 1:
        return 1.0
    reduced = torch.zeros(1, device=device)
    ones = torch.ones(world_size, device=device)
    # torch 2.13 renamed the collective that FSDP2 calls.
    renamed = getattr(dist, "reduce_scatter_single", None)
    (renamed or dist.reduce_scatter_tensor)(reduced, ones, op=dist.ReduceOp.AVG)
    return world_size / reduced.item()


def all_reduce_sum(values: Tensor) -> Tensor:
    """Sum ``values`` over the ranks, in place, and return it."""
    dist.all_reduce(values)
    return values


def gather_interleaved(local: Tensor, total: int) -> Tensor:
    """Undo a deal: rank ``r`` holds items ``r, r + W, r + 2W, ...`` of ``total``, [m, ...].

    Returns:
        All items in order, [total, ...], the same on every rank.
    """
    if total == 0:
        return local[:0]
    world_size = dist.get_world_size()
    size = -(-total // world_size)
    padded = local.new_zeros(size, *local.shape[1:])
    padded[: len(local)] = local
    gathered = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(gathered, padded)
    return torch.stack(gathered, dim=1).flatten(0, 1)[:total]


def wait_for_all() -> None:
    """Return when every rank has called it, however long that takes."""
    dist.barrier(group=_waits)


def gather_objects(local: T) -> list[T]:
    """What each rank has, by rank, on all of them, however long they take to get there."""
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, local, group=_waits)
    return by_rank


def on_rank_zero(function: Callable[[], T]) -> T:
    """Call ``function`` on rank 0, while the others wait for its outcome, however long.

    What it returned, or raised, is returned or raised on every rank.
    """
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = function()
        except Exception as error:
            dist.broadcast_object_list([None, _as_sent(error)], group=_waits)
            raise
    dist.broadcast_object_list(outcome, group=_waits)
    result, failure = outcome
    if failure is not None:
        raise failure
    return result


def on_each_rank(function: Callable[[], T]) -> T:
    """Call ``function`` on every rank, wait until all have done so, and return each rank's result.

    What it raised on the first rank where it failed is raised on every rank.
    """
    result: Any = None
    failure = None
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - raised below
        failure = _as_sent(error)
    for failed in gather_objects(failure):
        if failed is not None:
            raise failed
    return result


def _as_sent(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
