"""The on-disk format of an episodic memory: a folder that can be read without torchtune.

``memory.json``
    Format and version; number of slots; fingerprint of the tokenizer; origins, the first
    ``inherited`` of which are from earlier runs; the number of steps before the run had a memory,
    if a resumed run turned replay on; the section ``replay`` of the config; and the state of the
    memory without tensors, such as its capacity and how addresses are computed.

``slots.safetensors``
    One row for each slot in use, N of them, and the tokens of all:

    example_ids      int64    [N]     origin << 32 | example; origins of this run count from 0,
                                      inherited ones are negative, -1 the last of ``inherited``
    scores           float32  [N]     running JEPA error, or loss per label if replay.score=lm
    replay_counts    int32    [N]
    lengths          int32    [N, 5]  tokens of source, bridge, target, source and target view
    tokens           int32    [T]     tokens of slot 0, of slot 1, ...; T is the sum of lengths
    address_values   float32  [N, K]  [N, H] for dense addresses; absent without addresses
    address_indices  int16/32 [N, K]  only for sparse addresses
    generator        uint8    [G]     state of the random generator for selection

``texts.jsonl``
    A line per slot for human readers: where it is from, source, target, score, replay count.
    Not written above 100,000 slots; their tokens can be decoded instead.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.replay import EpisodicMemory, EpisodicReplay
from erjepa.utils.jsonl import to_jsonl

ABOUT, SLOTS, TEXTS = "memory.json", "slots.safetensors", "texts.jsonl"
FORMAT, VERSION = "erjepa episodic memory", 1
_MOST_TEXTS = 100_000  # slots; decoding more would take longer than saving them


def write_memory(
    folder: Path, replay: EpisodicReplay, about: Mapping[str, Any]
) -> None:
    """Write ``memory.json`` and ``slots.safetensors`` into a folder, created if absent.

    Args:
        about: the keys tokenizer, origins, inherited, replay and, of a run, steps_without of
            ``memory.json``.
    """
    folder.mkdir(exist_ok=True)
    head = {"format": FORMAT, "version": VERSION, "slots": len(replay)}
    about = {**head, **about, "state": asdict(replay.state)}
    write_files(folder, about, replay.tensors())


def write_files(
    folder: Path, about: Mapping[str, Any], tensors: dict[str, Tensor]
) -> None:
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
    save_file(tensors, folder / SLOTS)
    # save_file makes a file that only its owner may read.
    shutil.copymode(folder / ABOUT, folder / SLOTS)


def write_texts(
    folder: Path,
    memory: EpisodicMemory,
    texts: PairTexts,
    where: Callable[[int], str],
) -> None:
    """Write ``texts.jsonl``, unless the memory has more than 100,000 slots. ``where`` returns file
    and line of an example id.
    """
    if len(memory) > _MOST_TEXTS:
        return
    columns = (memory.example_ids, memory.scores, memory.replay_counts)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    with (folder / TEXTS).open("w", encoding="utf-8") as file:
        for slot, (example_id, score, count) in enumerate(rows):
            source, target = texts(memory.segments([slot])[0])
            row = {
                "slot": slot,
                "where": where(example_id),
                "score": score,
                "replay_count": count,
                "source": source,
                "target": target,
            }
            file.write(to_jsonl([row]))
