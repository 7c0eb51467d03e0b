"""The process group of a run, and the heartbeats by which ranks notice that others are gone."""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from erjepa.training.model.distributed import init_process_group, wait_for_all
from erjepa.training.run.signals import resuming_command

_BEAT = 1.0  # seconds
_PATIENCE = 10.0  # seconds; torchrun kills the ranks 30 s after it told them to stop


class Heartbeats:
    """Ends this rank when another has been silent for ``timeout`` seconds.

    A rank that was killed, stopped or cut off leaves the others in a collective, where the main
    thread handles no signal. So threads do the work: one counts in the store of the launcher and
    reads the counts of the others; one, which never waits for the store, ends the process with one
    line that names the silent ranks. Time in which this rank itself is stopped does not count.
    """

    def __init__(self, rank: int, num_ranks: int, timeout: float) -> None:
        self._rank, self._num_ranks = rank, num_ranks
        self._timeout = timeout
        self._beats = 0  # seen by the thread that watches
        self._heard = [0] * num_ranks  # at which of them each rank counted last
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._count, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def lose_patience(self) -> None:
        """Wait only seconds for a silent rank from now on: the run has been told to stop."""
        self._timeout = min(self._timeout, _PATIENCE)

    def close(self) -> None:
        """Stop counting and watching."""
        self._closed.set()
        for thread in self._threads:
            thread.join(_PATIENCE)  # Python aborts if it ends while torch is in one

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
                store = None  # lost; the next round connects again
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
        if self._rank == first:  # it speaks for all that are left
            ranks = ", ".join(map(str, silent))
            text = (
                f"\nNo sign of rank {ranks} for {self._timeout:g} s: killed, stopped or cut "
                f"off. Ending, as no step can; to resume: {resuming_command('auto')}\n"
            )
            os.write(2, text.encode())
        os._exit(1)


_heartbeats: Heartbeats | None = None


@contextlib.contextmanager
def process_group(device: torch.device, timeout: float) -> Iterator[None]:
    """Join the process group within, and leave it when all ranks do.

    A rank that fails does not wait for the others, which the launcher ends. A rank that is silent
    for ``timeout`` seconds ends the others, see :class:`Heartbeats`.
    """
    global _heartbeats
    init_process_group(device, timeout)
    if (num_ranks := dist.get_world_size()) > 1:
        _heartbeats = Heartbeats(dist.get_rank(), num_ranks, timeout)
    failed = True
    try:
        yield
        wait_for_all()
        failed = False
    finally:
        if _heartbeats is not None:
            _heartbeats.close()
        if dist.is_initialized() and (not failed or dist.get_world_size() == 1):
            dist.destroy_process_group()


def lose_patience() -> None:
    """As :meth:`Heartbeats.lose_patience`, where there are any."""
    if _heartbeats is not None:
        _heartbeats.lose_patience()
