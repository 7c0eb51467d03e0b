"""What a run replays, in words."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from erjepa.checkpoints.stored_memory import memory_folder
from erjepa.configs import Config
from erjepa.datasets import numbered
from erjepa.replay.retention import origins
from erjepa.training.model.distributed import on_rank_zero
from erjepa.training.run.memory import RunMemory


def replay_summary(memory: RunMemory, pairs: int) -> str:
    """Describe what a step of ``pairs`` pairs replays."""
    settings = memory.settings
    if not memory.is_on:
        return "none"
    stored = f"up to {settings.capacity:,} pairs are stored"
    if not memory.can_draw:
        return f"none, as no pair is inherited; {stored} for later runs"
    if not (settings.draw_from == "all" or _inherited(memory)):
        if memory.share:
            stored = f"a step has {pairs - memory.share * pairs:g} new pairs; {stored}"
        return f"none, as all inherited pairs have been deleted; {stored}"
    drawn = _drawn(memory, pairs)
    noun = "pair" if drawn.split()[-1] == "1" else "pairs"
    return f"{drawn} {noun} a step, by {settings.selection}; {stored}"


def inherited_summary(memory: RunMemory, pairs: int) -> list[str]:
    """Describe the inherited pairs by dataset, and how many of them a step of ``pairs`` pairs
    replays; empty if there are none.
    """
    if memory.replay is None or not (counts := _inherited(memory)):
        return []
    settings, names = memory.settings, numbered(memory.origins.inherited)
    of_each = ", ".join(f"{n:,} of {names[at]}" for at, n in counts.items())
    stored = f"{of_each} in memory"
    if left_out := memory.earlier.left_out:
        stored += f", {left_out:,} left out by replay.capacity={settings.capacity}"
    replayed = f"{_drawn(memory, pairs)} replayed per step"
    if settings.draw_from == "all":
        replayed += ", fewer as new ones are stored"
    return [stored, replayed]


def changed_settings(memory: RunMemory) -> str:
    """Describe the replay settings in which a new run differs from the runs whose memories it
    inherits; empty if there are none.
    """
    earlier, changes = memory.earlier.replay_settings, []
    for key, value in asdict(memory.settings).items():
        others = [
            f"{_as_yaml(settings[key])} in {run}"
            for run, settings in earlier.items()
            if not key.startswith("init_") and settings.get(key, value) != value
        ]
        if others:
            changes.append(f"replay.{key}={_as_yaml(value)} ({', '.join(others)})")
    return ", ".join(changes)


def forgetting_warnings(cfg: Config, memory: RunMemory, num_new: int) -> Iterator[str]:
    """Yield warnings about settings with which a new run forgets what earlier runs learned.

    Args:
        num_new: number of pairs in the run's dataset.
    """
    settings, replay = cfg.replay, memory.replay
    if not memory.earlier.runs:
        merged = reversed(cfg.base_adapters or [])
        start = cfg.init_from or next(iter([*settings.start_from, *merged]), None)
        if start and on_rank_zero(lambda: memory_folder(Path(start)) is not None):
            way = "replay.weight=0."
            if memory.is_on:
                key = "continue_from" if cfg.init_from else "replay.init_from"
                way = f"{key}={start} replays it."
            yield f"{start} has a memory, and this run replays none of it: {way}"
        return
    assert replay is not None  # set whenever there are earlier memories
    if not len(replay):
        yield (
            f"{', '.join(settings.start_from)}: the memory is empty, or all its pairs are left "
            "out, so no earlier pair is replayed; erjepa memory create makes a memory from a file"
        )
        return
    if settings.draw_from == "inherited":
        return
    if settings.selection == "content":
        yield (
            "replay.selection=content recalls hardly any of the inherited pairs where the new "
            "ones are unlike them; uniform keeps what they taught (docs/loss_and_replay.md)."
        )
    is_evicting = settings.retention == "score" and not settings.reserve
    if is_evicting and len(replay) + num_new > settings.capacity:
        yield (
            f"replay.capacity={settings.capacity} is less than the {len(replay)} inherited and "
            f"{num_new} new pairs, and replay.retention=score evicts those with the smallest "
            "errors, inherited ones first; replay.retention=balanced keeps as many of each."
        )


def _as_yaml(value: Any) -> Any:
    return "null" if value is None else value


def _inherited(memory: RunMemory) -> Counter[int]:
    """Return the number of inherited pairs in the memory, by origin."""
    assert memory.replay is not None
    ids = origins(memory.replay.memory.example_ids)
    return Counter(ids[ids < 0].tolist())


def _drawn(memory: RunMemory, pairs: int) -> str:
    if memory.share:
        return f"{memory.share * pairs:g}"
    return f"up to {memory.settings.budget or pairs}"
