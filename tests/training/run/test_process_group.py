"""When a rank is killed or stopped, the others exit, even while waiting for it."""

import multiprocessing
import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist

from erjepa.training.model.distributed import all_reduce_sum
from erjepa.training.run import process_group
from erjepa.training.run.process_group import lose_patience
from erjepa.training.run.signals import StopSignals
from tests.harness.ranks import start_ranks


@pytest.mark.parametrize(
    ("gone", "how", "is_told"),
    [
        (0, signal.SIGSTOP, True),  # with it the store
        (1, signal.SIGSTOP, True),
        (1, signal.SIGSTOP, False),
        (1, signal.SIGKILL, True),
    ],
)
def test_a_rank_that_is_gone_ends_the_other(monkeypatch, capfd, gone, how, is_told):
    monkeypatch.setattr(process_group, "_BEAT", 0.05)
    monkeypatch.setattr(process_group, "_PATIENCE", 0.5)
    waits = multiprocessing.get_context("fork").Event()

    def wait():
        all_reduce_sum(torch.ones(1))  # nobody is still being set up
        with StopSignals(lose_patience):
            if dist.get_rank() == gone:
                os.kill(os.getpid(), how)
            waits.set()
            if how == signal.SIGKILL:  # which Gloo notices, and a kernel does not
                threading.Event().wait()
            all_reduce_sum(torch.ones(1))

    ranks, _ = start_ranks(wait, 2, timeout=60 if is_told else 0.5)
    other = ranks[1 - gone]
    try:
        assert waits.wait(60)
        if is_told:
            os.kill(other.pid, signal.SIGTERM)
        other.join(20)
        assert other.exitcode == 1
    finally:
        for process in ranks:
            process.kill()
    (said,) = [line for line in capfd.readouterr().err.splitlines() if "rank" in line]
    assert f"rank {gone} " in said and "resume_from_checkpoint=auto" in said


def test_a_second_signal_ends_a_rank_that_waits(monkeypatch):
    monkeypatch.setattr("erjepa.training.run.signals._SAME", 0.0)
    context = multiprocessing.get_context("fork")
    waits, is_told = context.Event(), context.Event()

    def wait():
        # A shell's job in the background, as the tests may be, ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with StopSignals(is_told.set):
            if dist.get_rank() == 0:
                waits.set()
                all_reduce_sum(torch.ones(1))
            threading.Event().wait()

    ranks, _ = start_ranks(wait, 2)
    try:
        assert waits.wait(60)
        os.kill(ranks[0].pid, signal.SIGTERM)
        assert is_told.wait(60)  # signals that come together may swap places
        os.kill(ranks[0].pid, signal.SIGINT)
        ranks[0].join(30)
        assert ranks[0].exitcode == 128 + signal.SIGINT
    finally:
        for process in ranks:
            process.kill()


def test_a_process_that_is_forked_after_a_run_can_run():
    with process_group.process_group(torch.device("cpu"), 60):
        pass
    ranks, _ = start_ranks(dist.get_rank, 1)
    ranks[0].join(30)
    hangs = ranks[0].is_alive()
    ranks[0].kill()
    assert not hangs
