"""Measure the overhead of replay in a step: addresses, selection, refresh and write, memory full.

    python -m tests.benchmarks.replay [--quick]

A step has 64 pairs, embeddings of width 2048, and addresses of 256 entries out of 8192, as with
Llama-3.2-1B; on a GPU the fraction of its step time is reported as well. Memories are filled with
random addresses and 100 tokens per pair. Random sources have different neighbors; "sources alike"
is the worst case, in which content selection compares every source before it stops trying to fill
the budget.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from erjepa.checkpoints.memory_file import write_memory
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.replay import EpisodicMemory, EpisodicReplay, ReplaySettings
from erjepa.replay.addresses import Addresses
from tests.benchmarks.device import DEVICE, ON_GPU, where
from tests.benchmarks.setting import fresh_recipe, stepper
from tests.benchmarks.timing import Row, Times, interleave, ratio
from tests.harness.memories import bytes_per_slot

PAIRS, WIDTH, ADDRESS, KEPT = 64, 2048, 8192, 256
SEGMENTS = (list(range(20)),) * 5
SHARES = {4: "<= 1", 6: "<= 3"}  # percent of a step that replay may take at 10^n slots
CASES = ("content", "content, sources alike", "uniform", "hard")
ADDRESSES = "replay, of which addresses of the sources, at any capacity"
GIB = 2**30


def benchmark(quick: bool) -> list[Row]:
    """Milliseconds a step for each selection and capacity, and what a memory takes."""
    step = step_seconds() if ON_GPU else None
    rows, before = [], {}
    for exponent in (3, 4, 5) if quick else (3, 4, 5, 6):
        memory = full_memory(10**exponent)
        sources = torch.randn(PAIRS, WIDTH, generator=torch.Generator().manual_seed(2))
        sources = sources.to(DEVICE)
        addresses = {ADDRESSES: partial(memory.address_table.encode, sources)}
        times = interleave(
            addresses | {case: partial(next, steps(memory, case)) for case in CASES},
            repeats=5 if quick else 9,
        )
        if not before:
            rows.append(times[ADDRESSES].row(ADDRESSES, note=where()))
        for case in CASES:
            rows += case_rows(case, exponent, times[case], before.get(case))
            if step and exponent in SHARES:
                name = f"replay, {case}, 10^{exponent}, share of a step of Llama-3.2-1B"
                share = 100 * times[case].median / step
                rows.append(Row(name, share, "%", target=SHARES[exponent]))
        before = times
    rows.append(bytes_row(memory))
    return rows if quick else rows + checkpoint_rows(memory)


def case_rows(case: str, exponent: int, times: Times, before: Times | None):
    """Time of a step at a capacity, and over that at a tenth of it."""
    yield times.row(f"replay, {case}, 10^{exponent}", note=where())
    if before is not None:
        name = f"replay, {case}, 10^{exponent} / 10^{exponent - 1}"
        yield ratio(name, times, before, target="<= 10")


def step_seconds() -> float:
    """Median of a training step with as many replayed pairs as new ones."""
    with fresh_recipe(batch_size=PAIRS, replay__fill=True) as recipe:
        return interleave({"step": stepper(recipe)}, repeats=5, warmup=3)["step"].median


def full_memory(capacity: int) -> EpisodicMemory:
    """A memory without a free slot; addresses have an entry in each of K equal parts."""
    memory = make_replay(capacity, "content").memory
    generator = torch.Generator().manual_seed(0)
    part = ADDRESS // KEPT
    for ids in torch.arange(capacity).split(5000):
        offsets = torch.randint(part, (len(ids), KEPT), generator=generator)
        values = torch.randn(len(ids), KEPT, generator=generator)
        indices = torch.arange(0, ADDRESS, part) + offsets
        addresses = Addresses(F.normalize(values).to(DEVICE), indices.to(DEVICE))
        errors = torch.rand(len(ids), generator=generator)
        memory.write(ids, [SEGMENTS] * len(ids), addresses, errors)
    return memory


def make_replay(capacity: int, selection: str) -> EpisodicReplay:
    settings = ReplaySettings(
        capacity=capacity,
        selection=selection,
        address_dim=ADDRESS,
        address_top_k=KEPT,
    )
    return EpisodicReplay(settings, embed_dim=WIDTH, seed=0, device=DEVICE)


def steps(memory: EpisodicMemory, case: str):
    """Yields after each step; its pairs are those of no step before."""
    replay = make_replay(1, case.split(",")[0])
    replay.memory = memory
    generator = torch.Generator().manual_seed(1)
    distinct = 1 if "alike" in case else PAIRS
    first = int(memory.example_ids.max()) + 1 + 10**6 * CASES.index(case)
    while True:
        ids = torch.arange(first, first + PAIRS, device=DEVICE)
        sources = torch.randn(distinct, WIDTH, generator=generator).to(DEVICE)
        errors = torch.rand(2, PAIRS, generator=generator).to(DEVICE)
        yield step(replay, ids, sources.expand(PAIRS, WIDTH), errors)
        first += PAIRS


def step(replay: EpisodicReplay, ids: Tensor, sources: Tensor, errors: Tensor) -> None:
    """What the recipe does with the memory in a step."""
    segments = [SEGMENTS] * len(ids)
    addresses = replay.encode(sources)
    draw = replay.draw(ids, segments, addresses)
    replay.refresh(draw, errors[0, : len(draw.slots)])
    replay.write(ids, segments, addresses, errors[1])


def bytes_row(memory: EpisodicMemory) -> Row:
    size = bytes_per_slot(memory)
    note = f"{size:.0f} bytes a slot"
    name = "replay, a million slots of 100 tokens"
    return Row(name, size * 10**6 / GIB, "GiB", target="<= 2", note=note)


def checkpoint_rows(memory: EpisodicMemory) -> list[Row]:
    """Size of a memory in a checkpoint, and seconds to write and to read it."""
    name = f"replay, {memory.capacity} slots in a checkpoint"
    replay = make_replay(1, "content")
    replay.memory = memory
    about = {"tokenizer": "", "origins": [""], "inherited": 0, "replay": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        saving = seconds(lambda: write_memory(path, replay, about))
        size = sum(file.stat().st_size for file in path.iterdir()) / GIB
        loading = seconds(lambda: restore(replay, open_memory(path)))
    return [
        Row(name, size, "GiB"),
        Row(f"{name}, saved in", saving, "s"),
        Row(f"{name}, loaded in", loading, "s"),
    ]


def restore(replay: EpisodicReplay, stored: StoredMemory) -> None:
    replay.restore(stored.about.state, stored.tensors)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    for row in benchmark(quick="--quick" in sys.argv):
        print(row)
