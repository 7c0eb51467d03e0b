"""A memory read from its file equals the one written, at any size."""

import json
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file

from erjepa.checkpoints.memory_file import write_memory
from erjepa.checkpoints.stored_memory import open_memory
from tests.harness.memories import DESCRIPTION, contents, filled, step


@pytest.mark.parametrize("address", ["sparse", "dense"])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_a_memory_goes_on_from_its_file(tmp_path, count, address):
    settings = {"selection": "mixed", "address": address}
    replay, other = filled(count, **settings), filled(45, **settings)
    write_memory(tmp_path / "memory", replay, DESCRIPTION)
    stored = open_memory(tmp_path)
    other.restore(stored.about.state, stored.tensors)
    assert len(other) == len(replay) == len(stored) == count
    for number in range(50, 80, 5):
        assert step(other, number, 5) == step(replay, number, 5)
    assert contents(other) == contents(replay)


def test_the_file_is_readable_without_this_project(tmp_path):
    replay = filled(30)
    write_memory(tmp_path, replay, DESCRIPTION)
    tensors = load_file(tmp_path / "slots.safetensors")
    about = json.loads((tmp_path / "memory.json").read_text())
    assert about["slots"] == 30 and about["version"] == 1
    assert torch.equal(tensors["scores"], replay.memory.scores)
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1  # whoever may read one file may read both
    start = int(tensors["lengths"][:7].sum())
    stop = start + int(tensors["lengths"][7].sum())
    assert tensors["tokens"][start:stop].tolist() == [7, 7, 7, 1, 2, 7, 3, 7]


def test_writing_copies_no_more_than_the_tokens(tmp_path):
    replay = filled(20_000, capacity=20_000, address_dim=256, address_top_k=128)
    tracemalloc.start()
    write_memory(tmp_path, replay, DESCRIPTION)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (tmp_path / "slots.safetensors").stat().st_size / 4


def test_a_part_of_a_memory(tmp_path):
    replay = filled(30)
    write_memory(tmp_path / "memory", replay, DESCRIPTION)
    slots, other = torch.tensor([2, 7, 29]), filled(5)
    stored = open_memory(tmp_path)
    for part in (stored.part(slots), stored.part(slots[:0])):
        other.memory.load(part, at=len(other))
    expected = [filled(5).memory.segments([n])[0] for n in range(5)]
    expected += replay.memory.segments(slots.tolist())
    assert other.memory.segments(range(len(other))) == expected
    assert other.memory.scores[5:].tolist() == replay.memory.scores[slots].tolist()
