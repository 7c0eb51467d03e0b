"""The backends of a process group, and its timeouts."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from erjepa.training.model import distributed
from erjepa.training.model.distributed import (
    all_reduce_sum,
    gather_objects,
    init_process_group,
    on_each_rank,
    on_rank_zero,
    wait_for_all,
)
from erjepa.training.run import process_group
from tests.harness.ranks import on_ranks


@pytest.mark.parametrize(
    ("device", "backend"), [("cpu", "gloo"), ("cuda", "cuda:nccl,cpu:gloo")]
)
def test_the_host_can_reduce_beside_any_device(monkeypatch, device, backend):
    asked = []
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(
        *(dist, "init_process_group"),
        lambda name, timeout, **_: asked.append((name, timeout)),
    )
    monkeypatch.setattr(dist, "new_group", lambda backend, **_: asked.append(backend))
    init_process_group(torch.device(device), 5)
    assert asked == [(backend, timedelta(seconds=5 + distributed._MARGIN)), "gloo"]


def test_only_a_step_has_a_short_timeout(monkeypatch):
    monkeypatch.setattr(distributed, "_MARGIN", 0)
    monkeypatch.setattr(process_group, "_BEAT", 60)  # none are missed

    def waited():
        for wait in (lambda: gather_objects(0), wait_for_all):
            if dist.get_rank() == 0:
                time.sleep(0.5)
            wait()
        on_rank_zero(lambda: time.sleep(0.5))
        if dist.get_rank() == 0:
            return time.sleep(0.8)
        with pytest.raises(RuntimeError, match="(?i)timed out"):
            all_reduce_sum(torch.ones(1))

    on_ranks(waited, 2, timeout=0.4)


def fail_on_rank_one():
    if dist.get_rank() == 1:
        raise KeyError("a column")


def test_an_error_on_each_rank_keeps_its_place():
    def where():
        try:
            on_each_rank(fail_on_rank_one)
        except KeyError as error:
            return error.__traceback__.tb_next.tb_next is not None

    assert on_ranks(where, 2) == [False, True]
