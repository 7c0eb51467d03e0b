"""A memory read from its file equals the one written, at any size."""

import json
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file

from erjepa.checkpoints import memory_file, stored_memory
from erjepa.checkpoints.memory_file import write_memory
from erjepa.checkpoints.stored_memory import open_memory
from tests.harness.memories import DESCRIPTION, filled, step


@pytest.mark.parametrize("address", ["sparse", "dense"])
@pytest.mark.parametrize("count, block", [(0, 8), (1, 8), (24, 8), (30, 8), (30, 99)])
def test_a_memory_goes_on_from_its_file(tmp_path, monkeypatch, count, block, address):
    for module in (memory_file, stored_memory):
        monkeypatch.setattr(module, "BLOCK", block)
    settings = {"selection": "mixed", "address": address}
    replay, other = filled(count, **settings), filled(45, **settings)
    write_memory(tmp_path / "memory", replay, DESCRIPTION)
    stored = open_memory(tmp_path)
    stored.load_into(other)
    assert len(other) == len(replay) == len(stored) == count
    for number in range(50, 80, 5):
        assert step(other, number, 5) == step(replay, number, 5)
    assert contents(other) == contents(replay)


def contents(replay):
    memory = replay.memory
    return (
        memory.example_ids.tolist(),
        memory.scores.tolist(),
        memory.replay_counts.tolist(),
        memory.segments(range(len(memory))),
    )


def test_the_file_is_readable_without_this_project(tmp_path):
    replay = filled(30)
    write_memory(tmp_path, replay, DESCRIPTION)
    tensors = load_file(tmp_path / "slots.safetensors")
    about = json.loads((tmp_path / "memory.json").read_text())
    assert about["slots"] == 30 and about["version"] == 1
    assert torch.equal(tensors["scores"], replay.memory.scores)
    start = int(tensors["lengths"][:7].sum())
    stop = start + int(tensors["lengths"][7].sum())
    assert tensors["tokens"][start:stop].tolist() == [7, 7, 7, 1, 2, 7, 3, 7]


def test_writing_holds_a_block_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_file, "BLOCK", 100)
    replay = filled(20_000, capacity=20_000)
    copied = []
    state_dict = replay.state_dict

    def spy(*args):
        state = state_dict(*args)
        copied.append(state["memory"]["addresses"]["values"].nbytes)
        return state

    monkeypatch.setattr(replay, "state_dict", spy)
    tracemalloc.start()
    write_memory(tmp_path, replay, DESCRIPTION)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(copied) == 201 and max(copied) == 100 * 4
    assert peak < 200_000 < (tmp_path / "slots.safetensors").stat().st_size
