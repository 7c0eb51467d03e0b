"""The process group of a run, and heartbeats that detect lost ranks."""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from erjepa.training.model.distributed import (
    init_process_group,
    leave_process_group,
    wait_for_all,
)
from erjepa.training.run.signals import resuming_command

_BEAT = 1.0  # seconds
# Seconds; below the 30 after which torchrun kills ranks it has told to stop.
_PATIENCE = 10.0


class Heartbeats:
    """Ends this rank when another has been silent for ``timeout`` seconds.

    When a rank is killed, stopped or disconnected, the others hang in a collective, where the main
    thread handles no signals. So two threads do the work: one increments a count in the launcher's
    store and reads those of the other ranks; the other, which never waits for the store, ends the
    process and names the silent ranks. Time in which this rank itself is stopped does not count.
    """

    def __init__(self, rank: int, num_ranks: int, timeout: float) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        self._timeout = timeout
        self._beats = 0  # ticks of the watching thread
        self._heard = [0] * num_ranks  # tick at which each rank last counted
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._count, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def lose_patience(self) -> None:
        """Shorten the timeout to seconds, once the run has been told to stop."""
        self._timeout = min(self._timeout, _PATIENCE)

    def close(self) -> None:
        self._closed.set()
        # Python aborts if it exits while a thread is in torch.
        for thread in self._threads:
            thread.join(_PATIENCE)

    def _count(self) -> None:
        store = None
        counts = [b""] * self._num_ranks
        keys = [f"erjepa/heartbeat/{rank}" for rank in range(self._num_ranks)]
        for count in itertools.count():
            try:
                store = store or dist.TCPStore(
                    os.environ["MASTER_ADDR"],
                    int(os.environ["MASTER_PORT"]),
                    wait_for_workers=False,
                    timeout=timedelta(seconds=60),
                )
                store.set(keys[self._rank], str(count))
                now, values = self._beats, store.multi_get(keys)
            except RuntimeError:
                store = None  # connection lost; the next iteration reconnects
            else:
                for rank, value in enumerate(values):
                    if value != counts[rank]:
                        counts[rank], self._heard[rank] = value, now
            if self._closed.wait(_BEAT):
                return

    def _watch(self) -> None:
        while not self._closed.wait(_BEAT):
            self._beats += 1
            late = self._beats - self._timeout / _BEAT
            silent = [
                rank
                for rank, heard in enumerate(self._heard)
                if heard < late and rank != self._rank
            ]
            if silent:
                self._end(silent)

    def _end(self, silent: list[int]) -> None:
        first = min(set(range(self._num_ranks)) - set(silent))
        if self._rank == first:  # the first remaining rank prints for all
            ranks = ", ".join(map(str, silent))
            text = (
                f"\nNo sign of rank {ranks} for {self._timeout:g} s: killed, stopped or cut "
                f"off. Ending this run; to resume: {resuming_command('auto')}\n"
            )
            os.write(2, text.encode())
        os._exit(1)


_heartbeats: Heartbeats | None = None


@contextlib.contextmanager
def process_group(device: torch.device, timeout: float) -> Iterator[None]:
    """Join the process group in the context, and leave it when all ranks do.

    A rank that fails does not wait for the others, which the launcher ends. If a rank is silent for
    ``timeout`` seconds, the others end, see :class:`Heartbeats`.
    """
    global _heartbeats
    init_process_group(device, timeout)
    if (num_ranks := dist.get_world_size()) > 1:
        _heartbeats = Heartbeats(dist.get_rank(), num_ranks, timeout)
    leaves = num_ranks == 1
    try:
        yield
        wait_for_all()
        leaves = True
    finally:
        if _heartbeats is not None:
            _heartbeats.close()
        if leaves:
            leave_process_group()


def lose_patience() -> None:
    if _heartbeats is not None:
        _heartbeats.lose_patience()
