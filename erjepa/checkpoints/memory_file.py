"""The format in which an episodic memory outlives its run: a folder, readable without torchtune.

``memory.json``
    Format and version; how many slots; fingerprint of the tokenizer; origins, of which the
    first ``inherited`` are those of earlier runs; the section ``replay`` of the config; and what
    of the memory's state is no tensor: capacity, and how addresses are made.

``slots.safetensors``
    One row for each slot in use, N of them, and the tokens of all:

    example_ids      int64    [N]     origin << 32 | example; origins of this run count from 0,
                                      inherited ones are below 0, -1 the last of ``inherited``
    scores           float32  [N]     running error: JEPA, or with replay.score=lm a label's
    replay_counts    int32    [N]
    lengths          int32    [N, 5]  tokens of source, bridge, target, source and target view
    tokens           int32    [T]     those of slot 0, of slot 1, ...; T is the sum of lengths
    address_values   float32  [N, K]  or [N, H] where addresses are dense; may be absent
    address_indices  int16/32 [N, K]  not there where addresses are dense, or absent
    generator        uint8    [G]     state of the generator of random selections

``texts.jsonl``
    A line for each slot, for people: where it is from, source, target, score and replay count.
    Not written above a hundred thousand slots, whose tokens can be decoded.

Slots are written and read some thousands at a time, so that a memory is never held twice;
``safetensors.torch.save_file`` would copy all of it first.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from erjepa.checkpoints.checkpoint import MEMORY, checkpoints
from erjepa.replay import EpisodicReplay

ABOUT, SLOTS, TEXTS = "memory.json", "slots.safetensors", "texts.jsonl"
FORMAT, VERSION = "erjepa episodic memory", 1
_BLOCK = 8192  # slots at a time

# Name in the file -> place in the state of EpisodicReplay. Wide numbers first: every tensor then
# starts at a multiple of the size of its numbers.
_PLACES = {
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
    """Write ``memory.json`` and ``slots.safetensors``.

    Args:
        folder (Path): made, if it is not there.
        replay (EpisodicReplay): what holds the memory.
        about (Mapping[str, Any]): tokenizer, origins, inherited and replay, see above.
    """
    folder.mkdir(exist_ok=True)
    tensors, plain = _split(replay.state_dict(0, 0))
    about = {
        "format": FORMAT,
        "version": VERSION,
        "slots": len(replay),
        **about,
        "state": plain,
    }
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n")

    counts = dict.fromkeys(tensors, len(replay))
    counts |= {
        "tokens": replay.memory.num_tokens,
        "generator": len(tensors["generator"]),
    }
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
    with (folder / SLOTS).open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        begin = file.tell()
        for start in range(0, max(len(replay), 1), _BLOCK):
            for name, rows in _split(replay.state_dict(start, start + _BLOCK))[
                0
            ].items():
                if name == "generator" and start:
                    continue
                file.seek(begin + at[name])
                at[name] += file.write(rows.numpy().tobytes())


class StoredMemory:
    """A memory on the disk, whole and of a known version.

    Args:
        folder (Path): that holds it.

    Attributes:
        about (dict[str, Any]): what ``memory.json`` holds.

    Raises:
        ValueError: if the files are not those of a memory, or not all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about = _read_about(folder / ABOUT)
        self._path = folder / SLOTS
        try:
            with safe_open(self._path, framework="pt") as file:
                shapes = {
                    name: file.get_slice(name).get_shape()
                    for name in file.keys()  # noqa: SIM118
                }
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{self._path} is not whole ({error}); take the memory of another "
                "checkpoint"
            ) from None
        missing = _PLACES.keys() - shapes.keys() - {"address_values", "address_indices"}
        lengths = {name: shape[0] for name, shape in shapes.items()}
        rows = {
            lengths.get(name) for name in _PLACES if name not in ("tokens", "generator")
        }
        if missing or rows - {None, len(self)}:
            raise ValueError(
                f"{self._path} does not hold the {len(self)} slots that "
                f"{ABOUT} beside it describes"
            )

    def __len__(self) -> int:
        return self.about["slots"]

    @property
    def has_addresses(self) -> bool:
        """Whether its run kept any."""
        return bool(self.about["state"]["memory"]["addresses"])

    def read(self, *names: str) -> list[Tensor]:
        """Whole tensors, by their names in the file; those it lacks are left out."""
        with safe_open(self._path, framework="pt") as file:
            return [file.get_tensor(name) for name in names if name in file.keys()]  # noqa: SIM118

    def blocks(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The state, some thousand slots at a time: the first slot of each, and its state."""
        with safe_open(self._path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            generator, token = file.get_tensor("generator"), 0
            for start in range(0, max(len(self), 1), _BLOCK):
                part = slice(start, min(start + _BLOCK, len(self)))
                tensors = {"generator": generator}
                tensors["lengths"] = slices["lengths"][part]
                stop = token + int(tensors["lengths"].sum())
                tensors["tokens"] = slices["tokens"][token:stop]
                token = stop
                for name in slices.keys() - tensors.keys():
                    tensors[name] = slices[name][part]
                yield start, _join(tensors, self.about["state"])

    def load_into(self, replay: EpisodicReplay) -> None:
        """Let ``replay`` go on where the memory was written.

        Raises:
            ValueError: naming the key, if its settings differ.
        """
        for start, state in self.blocks():
            replay.load_state_dict(state, start)


def find_memory(path: Path, key: str) -> StoredMemory:
    """The memory of a run, of its newest checkpoint that holds one, or of a checkpoint.

    Args:
        path (Path): output folder, checkpoint, or the folder ``memory`` of one.
        key (str): that names it, for the message.

    Returns:
        StoredMemory: the memory.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is not whole.
    """
    for folder in (path, path / MEMORY, *(c / MEMORY for c in checkpoints(path)[::-1])):
        if (folder / ABOUT).is_file():
            return StoredMemory(folder)
    raise FileNotFoundError(
        f"{key}: {path} holds no memory. Give the output_dir of a run with replay, or one of "
        f"its checkpoints; their folder {MEMORY} has a {ABOUT}."
    )


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(
            f"{path} does not describe a memory: its format is not {FORMAT!r}"
        )
    if about.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {about.get('version')} of the format, and version "
            f"{VERSION} is known here; read it with the release that wrote it"
        )
    known = {"slots": int, "tokenizer": str, "origins": list, "inherited": int}
    for name, kind in {**known, "state": dict}.items():
        if not isinstance(about.get(name), kind):
            raise ValueError(f"{path} lacks {name}, or it is no {kind.__name__}")
    return about


def _split(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of a state by their names in the file, and the rest of it."""
    tensors, plain = {}, _without_tensors(state)
    for name, (*sections, key) in _PLACES.items():
        section = state
        for part in sections:
            section = section[part]
        if key in section:
            tensors[name] = section[key]
    return tensors, plain


def _join(tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The state that :func:`_split` took apart."""
    state = json.loads(json.dumps(plain))
    for name, tensor in tensors.items():
        *sections, key = _PLACES[name]
        section = state
        for part in sections:
            section = section.setdefault(part, {})
        section[key] = tensor
    return state


def _without_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_tensors(value) if isinstance(value, Mapping) else value
        for key, value in state.items()
        if not isinstance(value, Tensor)
    }
