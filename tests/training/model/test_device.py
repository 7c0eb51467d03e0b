"""What the recipes report about their device, and which attention they choose."""

import importlib.util
import logging
import shutil
from dataclasses import replace

import pytest
import torch

from erjepa.configs import load
from erjepa.training.model import device
from erjepa.training.model.build import attention_for
from erjepa.training.model.device import (
    attention_of,
    compiler_obstacle,
    flex_obstacle,
    run_device,
)


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
    cfg = load("tiny_synth", [f"dtype={dtype}"])

    with caplog.at_level(logging.WARNING):
        assert run_device(cfg).type == "cpu"

    assert ("dtype=fp32" in caplog.text) == warned


@pytest.mark.parametrize(
    ("info", "fast"),
    [
        # oneDNN emulates bfloat16 on this one.
        ("flags\t: fpu avx512f avx512bw avx512vl avx512_vnni", False),
        ("flags\t: fpu avx512f avx512_bf16 clflushopt", True),
        ("flags\t: fpu avx512f amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("Features\t: fp asimd", False),
        (None, False),  # not Linux
    ],
)
def test_which_cpus_have_instructions_for_bfloat16(monkeypatch, tmp_path, info, fast):
    cpu_info = tmp_path / "cpuinfo"
    if info is not None:
        cpu_info.write_text(f"processor\t: 0\n{info}\n")
    monkeypatch.setattr(device, "_CPU_INFO", cpu_info)
    assert device._multiplies_bfloat16() == fast


@pytest.mark.parametrize(
    ("attention", "obstacle", "expected"),
    [
        ("auto", None, "flex"),
        ("flex", None, "flex"),
        ("auto", "no compiler", "dense"),
        ("dense", "no compiler", "dense"),
        ("dense", None, "dense"),
    ],
)
def test_how_a_run_attends(monkeypatch, caplog, attention, obstacle, expected):
    monkeypatch.setattr(device, "flex_obstacle", lambda device: obstacle)
    cfg = load("tiny_synth", [f"attention={attention}", "row_length=1024"])
    with caplog.at_level(logging.INFO):
        assert attention_of(cfg, torch.device("cuda")) == expected
    falls_back = attention == "auto" and obstacle
    lines = ["attention=auto takes a dense mask: no compiler."] if falls_back else []
    assert [record.message for record in caplog.records] == lines


def test_nothing_is_said_of_a_mask_that_is_dense_on_every_cpu(caplog):
    cfg = load("tiny_synth")
    with caplog.at_level(logging.INFO):
        assert attention_of(cfg, torch.device("cpu")) == "dense"
    assert not caplog.records


@pytest.mark.parametrize("row_length", [None, 1000])
def test_flex_attention_needs_whole_blocks(monkeypatch, row_length):
    monkeypatch.setattr(device, "flex_obstacle", lambda device: None)
    cfg = replace(load("tiny_synth"), row_length=row_length)
    message = f"row_length={row_length}: FlexAttention needs a multiple of 128"
    with pytest.raises(ValueError, match=message):
        attention_for(
            torch.nn.Linear(1, 1), cfg, attention_of(cfg, torch.device("cuda"))
        )
    dense = replace(cfg, attention="dense")
    assert attention_of(dense, torch.device("cuda")) == "dense"


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (9, 0)])
def test_flex_attention_needs_a_new_enough_gpu(monkeypatch, capability):
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old")
    monkeypatch.setattr(device, "compiler_obstacle", lambda: None)
    assert (flex_obstacle(cuda) is None) == (capability >= (8, 0))
    assert flex_obstacle(torch.device("cpu")) == "FlexAttention needs CUDA"


@pytest.fixture
def triton(monkeypatch):
    """A machine with Triton, whose compiler is probed anew."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("CC", raising=False)
    compiler_obstacle.cache_clear()
    yield monkeypatch
    compiler_obstacle.cache_clear()


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_a_compiler_that_finds_python_h_will_do(triton):
    assert compiler_obstacle() is None
    assert compiler_obstacle.cache_info().misses == 1


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_a_compiler_without_python_h_is_named(triton, compiler):
    triton.setenv("CC", compiler)
    assert f"needs Python.h, which {compiler} does not find" in compiler_obstacle()


def test_a_machine_without_a_compiler_or_triton_cannot_compile(triton):
    triton.setattr(shutil, "which", lambda name: None)
    assert "needs a C compiler; install gcc" in compiler_obstacle()
    compiler_obstacle.cache_clear()
    triton.setattr(importlib.util, "find_spec", lambda name: None)
    assert "Triton, which is absent" in compiler_obstacle()
    triton.setattr(torch.cuda, "is_available", lambda: True)
    triton.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    triton.setattr(torch.cuda, "device_count", lambda: 1)
    cfg = load("tiny_synth", ["device=cuda", "compile=True"])
    with pytest.raises(ValueError, match="compile=True: .*Or set compile=False"):
        run_device(cfg)
