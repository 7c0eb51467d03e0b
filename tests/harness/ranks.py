"""Ranks of one process group, forked or spawned, some of which are killed."""

import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

from torchtune import utils

from erjepa.training.run.process_group import process_group

# Of this process, below those that the system deals out.
PORTS = itertools.count(10_000 + 997 * os.getpid() % 20_000)


def on_ranks(
    function: Callable[[], Any],
    world_size: int,
    timeout: float = 600,
    method: str = "fork",
) -> list[Any]:
    """Call ``function`` on ranks of one process group; return the results by rank.

    Forked ranks start fast. Spawned ones have hash seeds of their own, as torchrun's do, so that
    sets have another order on each; their ``function`` is one of a module.
    """
    ranks, results = start_ranks(function, world_size, timeout, method)
    by_rank: dict[int, Any] = {}
    while len(by_rank) < world_size:
        waiting = [p.sentinel for rank, p in enumerate(ranks) if rank not in by_rank]
        wait([results._reader, *waiting])
        if results.empty():
            for process in ranks:
                process.kill()
                process.join()
            codes = [process.exitcode for process in ranks]
            raise RuntimeError(f"a rank ended without a result; exit codes {codes}")
        # Plain pickles: tensors sent as such would share memory with ranks that are gone.
        rank, outcome = pickle.loads(results.get())
        by_rank[rank] = outcome
    for process in ranks:
        process.join()
    for outcome in by_rank.values():
        if isinstance(outcome, Exception):
            raise outcome
    return [by_rank[rank] for rank in range(world_size)]


def start_ranks(
    function: Callable[[], Any],
    world_size: int,
    timeout: float = 600,
    method: str = "fork",
) -> tuple[list, Any]:
    """Start ranks of one process group; return them, and the queue of their pickled results. The
    first is always forked.
    """
    contexts = [multiprocessing.get_context(name) for name in ("fork", method)]
    port, results = free_port(), contexts[1].SimpleQueue()
    ranks = [
        contexts[min(rank, 1)].Process(
            target=_run_rank,
            args=(function, rank, world_size, port, results, timeout),
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    return ranks, results


def on_doomed_ranks(function: Callable[[], Any], world_size: int) -> None:
    """Call ``function`` on ranks the first of which is killed during it."""
    ranks, _ = start_ranks(function, world_size)
    ranks[0].join()
    assert ranks[0].exitcode == -signal.SIGKILL, "rank 0 outlived its killer"
    for process in ranks[1:]:
        process.kill()
        process.join()


def kill_at_call(
    owner: Any, name: str, call: int, *, after: bool = False
) -> Callable[[], None]:
    """A function that makes the ``call``-th call of ``owner.name`` kill its process, before or
    after it runs.
    """
    calls = itertools.count(1)
    return kill_when(owner, name, lambda *_, **__: next(calls) == call, after=after)


def kill_at_rename(
    *, of: str | None = None, to: str | None = None, after: bool = False
) -> Callable[[], None]:
    """As :func:`kill_at_call`, at the first ``os.rename`` of or to a file or folder of a name."""

    def is_doomed(source, target):
        return source.name == of or target.name == to

    return kill_when(os, "rename", is_doomed, after=after)


def kill_when(
    owner: Any, name: str, is_doomed: Callable[..., bool], *, after: bool = False
) -> Callable[[], None]:
    """As :func:`kill_at_call`, at a call whose arguments ``is_doomed``."""

    def arm() -> None:
        original = getattr(owner, name)

        def lethal(*args, **kwargs):
            doomed = is_doomed(*args, **kwargs)
            if doomed and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **kwargs)
            if doomed:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, lethal)

    return arm


def free_port() -> int:
    """Return a port that no other process of the tests chooses before it is in use."""
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def _run_rank(function, rank, world_size, port, results, timeout) -> None:
    gc.freeze()  # collecting what was forked would copy it
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        with process_group(utils.get_device("cpu"), timeout):
            outcome = function()
    except Exception as error:  # noqa: BLE001
        if hasattr(error, "add_note"):
            error.add_note(traceback.format_exc())
        outcome = error
    try:
        message = pickle.dumps((rank, outcome))
    except Exception as error:  # noqa: BLE001
        message = pickle.dumps((rank, RuntimeError(f"{outcome!r}: {error}")))
    results.put(message)
