"""Which backends the ranks talk through."""

import pytest
import torch
import torch.distributed as dist

from erjepa.training.distributed import init_process_group


@pytest.mark.parametrize(
    ("device", "backend"), [("cpu", "gloo"), ("cuda", "cuda:nccl,cpu:gloo")]
)
def test_the_host_can_reduce_beside_any_device(monkeypatch, device, backend):
    asked = []
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(
        dist, "init_process_group", lambda name, **_: asked.append(name)
    )
    init_process_group(torch.device(device))
    assert asked == [backend]
