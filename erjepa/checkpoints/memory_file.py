"""The on-disk format of an episodic memory: a folder that can be read without torchtune.

``memory.json``
    Format and version; number of slots; fingerprint of the tokenizer; origins, the first
    ``inherited`` of which are from earlier runs; the section ``replay`` of the config; and the
    state of the memory without tensors, such as its capacity and how addresses are computed.

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

Slots are written and read in blocks, so that a memory is never copied as a whole, as
``safetensors.torch.save_file`` would.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.replay import EpisodicMemory, EpisodicReplay
from erjepa.utils.jsonl import to_jsonl

ABOUT, SLOTS, TEXTS = "memory.json", "slots.safetensors", "texts.jsonl"
FORMAT, VERSION = "erjepa episodic memory", 1
BLOCK = 8192  # slots at a time
_MOST_TEXTS = 100_000  # slots; decoding more would take longer than saving them

# Name in the file -> path in the state of EpisodicReplay. Widest dtypes first, so that every
# tensor is aligned to its element size.
PLACES = {
    "example_ids": ("memory", "example_ids"),
    "scores": ("memory", "scores"),
    "replay_counts": ("memory", "replay_counts"),
    "lengths": ("memory", "records", "lengths"),
    "tokens": ("memory", "records", "tokens"),
    "address_values": ("memory", "addresses", "values"),
    "address_indices": ("memory", "addresses", "indices"),
    "generator": ("generator",),
}
_DTYPES = {
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.uint8: "U8",
}


def write_memory(
    folder: Path, replay: EpisodicReplay, about: Mapping[str, Any]
) -> None:
    """Write ``memory.json`` and ``slots.safetensors`` into a folder, created if absent.

    Args:
        about: the keys tokenizer, origins, inherited and replay of ``memory.json``.
    """
    folder.mkdir(exist_ok=True)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "slots": len(replay),
        **about,
        "state": _without_tensors(replay.state_dict(0, 0)),
    }
    write_about(folder, about)
    states = (
        replay.state_dict(start, start + BLOCK)
        for start in range(0, max(len(replay), 1), BLOCK)
    )
    write_slots(folder, states, len(replay), replay.memory.num_tokens)


def write_texts(
    folder: Path,
    memory: EpisodicMemory,
    texts: PairTexts,
    where: Callable[[int], str],
) -> None:
    """Write ``texts.jsonl``, unless the memory has more than 100,000 slots.

    Args:
        texts: decodes the memory's pairs.
        where: returns file and line of an example id.
    """
    if len(memory) > _MOST_TEXTS:
        return
    columns = (memory.example_ids, memory.scores, memory.replay_counts)
    with (folder / TEXTS).open("w") as file:
        for slot, (example_id, score, count) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
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


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write ``memory.json``."""
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n")


def write_slots(
    folder: Path, states: Iterable[Mapping[str, Any]], slots: int, tokens: int
) -> None:
    """Write ``slots.safetensors``.

    Args:
        states: at least one state of an ``EpisodicReplay``, for consecutive ranges of slots.
        slots: number of slots in all states.
        tokens: number of tokens in all states.
    """
    begin, at = 0, dict[str, int]()
    with (folder / SLOTS).open("wb") as file:
        for state in states:
            tensors = _tensors_of(state)
            if at:
                del tensors["generator"]  # every state contains all of it
            else:
                counts = dict.fromkeys(tensors, slots)
                counts |= {"tokens": tokens, "generator": len(tensors["generator"])}
                header, at = _header(tensors, counts)
                file.write(header)
                begin = file.tell()
            for name, rows in tensors.items():
                file.seek(begin + at[name])
                at[name] += file.write(rows.numpy().tobytes())


def _header(
    tensors: Mapping[str, Tensor], counts: Mapping[str, int]
) -> tuple[bytes, dict[str, int]]:
    """Return the header of a safetensors file, and the offset of each tensor after it.

    Args:
        tensors: some rows of each tensor.
        counts: number of rows that each tensor will have.
    """
    header, at, end = {}, {}, 0
    for name, tensor in tensors.items():
        shape = [counts[name], *tensor.shape[1:]]
        at[name], end = end, end + tensor.element_size() * torch.Size(shape).numel()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": shape,
            "data_offsets": [at[name], end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded, at


def _tensors_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = {}
    for name, (*sections, key) in PLACES.items():
        section = state
        for part in sections:
            section = section[part]
        if key in section:
            tensors[name] = section[key]
    return tensors


def _without_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_tensors(value) if isinstance(value, Mapping) else value
        for key, value in state.items()
        if not isinstance(value, Tensor)
    }
