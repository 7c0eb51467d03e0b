"""The process group and the collectives of the recipes, which also work with one process."""

import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torchtune import training

P = ParamSpec("P")
T = TypeVar("T")

_LONG = timedelta(days=1)
_MARGIN = 30.0  # seconds; heartbeats name a silent rank before collectives time out
_waits: dist.ProcessGroup | None = None


def init_process_group(device: torch.device, timeout: float) -> None:
    """Join the launcher's process group, or create one of a single process.

    Its collectives take tensors on ``device`` and on the CPU, and wait ``timeout`` seconds for a
    rank, plus a margin. A second group over Gloo is for long waits: for rank 0, and for ranks with
    different amounts of work.
    """
    global _waits
    limit = timedelta(seconds=timeout + _MARGIN)
    backend = training.get_distributed_backend(
        device.type, offload_ops_to_cpu=device.type != "cpu"
    )
    alone: dict[str, Any] = {}
    if "RANK" not in os.environ:
        alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(backend, timeout=limit, **alone)
    _waits = dist.new_group(backend="gloo", timeout=_LONG)


def leave_process_group() -> None:
    """Leave the group of :func:`init_process_group`.

    The groups' threads end with the last reference to them, here: a process that is forked later
    does not have these threads, and would wait for them forever.
    """
    global _waits
    _waits = None
    dist.destroy_process_group()


def all_reduce_sum(values: Tensor) -> Tensor:
    """Sum ``values`` over the ranks, in place, and return it."""
    dist.all_reduce(values)
    return values


def gather_interleaved(local: Tensor, total: int) -> Tensor:
    """Gather ``total`` items of W ranks, of which rank ``r`` holds ``r, r + W, ...``, [m, ...].

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
    """Wait until every rank has called this, however long it takes."""
    dist.barrier(group=_waits)


def gather_objects(local: T) -> list[T]:
    """Return the ``local`` of every rank, by rank, on all ranks, however long they take."""
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, local, group=_waits)
    return by_rank


def require_equal(local: str, *, key: str, what: str) -> None:
    """Wait for all ranks, and compare what they have read.

    Args:
        local: digest of what this rank has read.
        key: start of the message, such as its config key.
        what: noun for it in the message, in the plural.

    Raises:
        ValueError: naming the ranks that have read something else than rank 0.
    """
    by_rank = gather_objects(local)
    if others := [i for i, digest in enumerate(by_rank) if digest != by_rank[0]]:
        raise ValueError(
            f"{key}: rank {', '.join(map(str, others))} reads other {what} "
            f"({by_rank[others[0]]}) than rank 0 ({by_rank[0]}); use the same files on "
            "all nodes"
        )


def on_rank_zero(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` on rank 0 while the others wait, however long it takes.

    Its result is returned on every rank; an exception is raised on every rank.
    """
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = function(*args, **kwargs)
        except Exception as error:
            dist.broadcast_object_list([None, _as_sent(error)], group=_waits)
            raise
    dist.broadcast_object_list(outcome, group=_waits)
    result, failure = outcome
    if failure is not None:
        raise failure
    return result


def on_each_rank(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` on every rank, wait until all are done, and return this rank's result.

    If it fails on any rank, the exception of the first such rank is raised on every rank, on that
    rank with its traceback.
    """
    result: Any = None
    error = None
    try:
        result = function(*args, **kwargs)
    except Exception as raised:  # noqa: BLE001 - raised below
        error = raised
    failures = gather_objects(error and _as_sent(error))
    for rank, failed in enumerate(failures):
        if failed is not None:
            raise error if error and rank == dist.get_rank() else failed
    return result


def _as_sent(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
