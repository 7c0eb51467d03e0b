"""What the recipes say of the device they are about to run on."""

import logging

import pytest
from omegaconf import OmegaConf

from erjepa.training import device
from erjepa.training.device import run_device


@pytest.mark.parametrize(
    ("dtype", "fast", "rank", "warned"),
    [
        ("bf16", False, "0", True),
        ("bf16", True, "0", False),
        ("fp32", False, "0", False),
        ("bf16", False, "1", False),  # rank 0 has said it
    ],
)
def test_a_cpu_without_bfloat16_is_told_once(
    monkeypatch, caplog, dtype, fast, rank, warned
):
    monkeypatch.setattr(device, "_multiplies_bfloat16", lambda: fast)
    monkeypatch.setenv("RANK", rank)
    cfg = OmegaConf.create({"device": "cpu", "dtype": dtype, "trainable_dtype": "fp32"})

    with caplog.at_level(logging.WARNING):
        assert run_device(cfg).type == "cpu"

    assert ("dtype=fp32" in caplog.text) == warned


def test_torch_still_says_what_a_cpu_has():  # by a private name
    assert isinstance(device._multiplies_bfloat16(), bool)
