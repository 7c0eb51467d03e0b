"""A memory in a file is the memory, at any size; a file that is not whole is one clear error."""

import json
import tracemalloc

import pytest
import torch
from safetensors.torch import load_file

from erjepa.checkpoints import memory_file
from erjepa.checkpoints.memory_file import find_memory, write_memory
from erjepa.replay import EpisodicReplay, ReplaySettings

ABOUT = {"tokenizer": "x", "origins": ["a.jsonl"], "inherited": 0, "replay": {}}


def filled(count, capacity=50, **settings):
    keys = ReplaySettings(capacity=capacity, budget=4, **settings)
    replay = EpisodicReplay(keys, embed_dim=8, seed=3)
    step(replay, 0, count)
    return replay


def step(replay, first, count):
    generator = torch.Generator().manual_seed(first)
    ids = torch.arange(first, first + count)
    segments = [([i] * (i % 5), [1], [2, i], [3], [i]) for i in ids.tolist()]
    addresses = replay.encode(torch.randn(count, 8, generator=generator))
    draw = replay.draw(ids, segments, addresses)
    replay.refresh(draw, torch.rand(len(draw.slots), generator=generator))
    replay.write(ids, segments, addresses, torch.rand(count, generator=generator))
    return draw.slots


@pytest.mark.parametrize("address", ["sparse", "dense"])
@pytest.mark.parametrize("count, block", [(0, 8), (1, 8), (24, 8), (30, 8), (30, 99)])
def test_a_memory_goes_on_from_its_file(tmp_path, monkeypatch, count, block, address):
    monkeypatch.setattr(memory_file, "_BLOCK", block)
    settings = {"selection": "mixed", "address": address}
    replay, other = filled(count, **settings), filled(45, **settings)
    write_memory(tmp_path / "memory", replay, ABOUT)
    stored = find_memory(tmp_path, "key")
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
    write_memory(tmp_path, replay, ABOUT)
    tensors = load_file(tmp_path / "slots.safetensors")
    about = json.loads((tmp_path / "memory.json").read_text())
    assert about["slots"] == 30 and about["version"] == 1
    assert torch.equal(tensors["scores"], replay.memory.scores)
    start = int(tensors["lengths"][:7].sum())
    stop = start + int(tensors["lengths"][7].sum())
    assert tensors["tokens"][start:stop].tolist() == [7, 7, 1, 2, 7, 3, 7]


def test_writing_holds_a_block_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_file, "_BLOCK", 100)
    replay = filled(20_000, capacity=20_000)
    copied = []
    state_dict = replay.state_dict

    def spy(*args):
        state = state_dict(*args)
        copied.append(state["memory"]["addresses"]["values"].nbytes)
        return state

    monkeypatch.setattr(replay, "state_dict", spy)
    tracemalloc.start()
    write_memory(tmp_path, replay, ABOUT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(copied) == 201 and max(copied) == 100 * 4
    assert peak < 200_000 < (tmp_path / "slots.safetensors").stat().st_size


def broken(folder, file, change):
    path = folder / file
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    "file, change, message",
    [
        ("slots.safetensors", lambda b: b[:-1], "slots.safetensors is not whole"),
        ("slots.safetensors", lambda b: b[: len(b) // 2], "is not whole"),
        ("slots.safetensors", lambda b: b"", "is not whole"),
        ("slots.safetensors", lambda b: b"PK" + b, "is not whole"),
        ("memory.json", lambda b: b[:-9], "memory.json cannot be read"),
        ("memory.json", lambda b: b"[]", "does not describe a memory"),
        ("memory.json", lambda b: b"{}", "does not describe a memory"),
        (
            "memory.json",
            lambda b: b.replace(b'"version": 1', b'"version": 2'),
            "has version 2 of the format, and version 1 is known",
        ),
        ("memory.json", lambda b: b.replace(b"tokenizer", b"t"), "lacks tokenizer"),
        (
            "memory.json",
            lambda b: b.replace(b'"slots": 30', b'"slots": 31'),
            "does not hold the 31 slots",
        ),
    ],
)
def test_a_file_that_is_not_whole_is_one_clear_error(tmp_path, file, change, message):
    write_memory(tmp_path, filled(30), ABOUT)
    broken(tmp_path, file, change)
    with pytest.raises(ValueError, match=message):
        find_memory(tmp_path, "key")


def test_no_memory(tmp_path):
    with pytest.raises(FileNotFoundError, match="replay.init_from: .* holds no memory"):
        find_memory(tmp_path, "replay.init_from")
