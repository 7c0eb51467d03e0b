"""Filled memories, and checkpoints that hold them."""

import sys

import torch
from torch import Tensor

from erjepa.checkpoints.manifest import write_manifest
from erjepa.checkpoints.memory_file import write_memory
from erjepa.replay import EpisodicMemory, EpisodicReplay, ReplaySettings
from erjepa.utils.jsonl import to_jsonl


def bytes_per_slot(memory: EpisodicMemory) -> float:
    """Bytes of a slot in use: its row of each tensor, and its tokens."""
    store = memory._segments
    parts = [vars(part).values() for part in (memory, memory.address_table, store)]
    tensors = [v for values in parts for v in values if isinstance(v, Tensor)]
    rows = sum(t[0].nbytes for t in tensors if len(t) == memory.capacity)
    pointer = 8
    tokens = sum(sys.getsizeof(t) + pointer for t in store._tokens) / memory.capacity
    return rows + tokens


DESCRIPTION = {"tokenizer": "x", "origins": ["a.jsonl"], "inherited": 0, "replay": {}}


def filled(count, capacity=50, **settings):
    keys = ReplaySettings(capacity=capacity, budget=4, **settings)
    replay = EpisodicReplay(keys, embed_dim=8, seed=3)
    step(replay, 0, count)
    return replay


def step(replay, first, count):
    generator = torch.Generator().manual_seed(first)
    ids = torch.arange(first, first + count)
    segments = [([i] * (i % 5 + 1), [1], [2, i], [3], [i]) for i in ids.tolist()]
    addresses = replay.encode(torch.randn(count, 8, generator=generator))
    draw = replay.draw(ids, segments, addresses)
    replay.refresh(draw, torch.rand(len(draw.slots), generator=generator))
    replay.write(ids, segments, addresses, torch.rand(count, generator=generator))
    return draw.slots


def as_lists(segments):
    return [[list(segment) for segment in pair] for pair in segments]


def contents(replay):
    """Ids, scores, replay counts and tokens of the slots."""
    memory = replay.memory
    return (
        memory.example_ids.tolist(),
        memory.scores.tolist(),
        memory.replay_counts.tolist(),
        as_lists(memory.segments(range(len(memory)))),
    )


def write_run(folder, *names):
    """Write a run whose checkpoints hold memories, each with one slot more than the last."""
    for count, name in enumerate(names, start=1):
        checkpoint = folder / name
        checkpoint.mkdir(parents=True)
        write_memory(checkpoint / "memory", filled(count), DESCRIPTION)
        text = {"source": "a", "target": "b"}
        texts = [{"where": f"a.jsonl:{i + 1}", **text} for i in range(count)]
        (checkpoint / "memory" / "texts.jsonl").write_text(to_jsonl(texts))
        write_manifest(checkpoint)
    return folder
