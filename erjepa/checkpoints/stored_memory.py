"""Reading and verification of episodic memories on disk."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from erjepa.checkpoints.checkpoint import MEMORY, saved
from erjepa.checkpoints.manifest import MANIFEST, read_manifest
from erjepa.checkpoints.memory_file import (
    ABOUT,
    FORMAT,
    SLOTS,
    TEXTS,
    VERSION,
    write_files,
)
from erjepa.datasets import Pair, TokenizedPairs, numbered
from erjepa.replay.retention import EXAMPLE_MASK, ORIGIN_BITS
from erjepa.replay.state import Natural, ReplayState, SparseAddresses
from erjepa.utils.checked import checked
from erjepa.utils.files import EMA, PEFT, open_regular
from erjepa.utils.jsonl import jsonl_of, parse_json, to_jsonl

_Caller = Callable[[Callable[[], Any]], Any]
_SEGMENTS = len(Pair._fields) - 1
_LONGEST_ADDRESS = 1.001  # the norm of an address is 1, up to rounding, or 0


@dataclass(frozen=True)
class Settings:
    """The keys of the section ``replay`` that are read."""

    score: Literal["jepa", "lm"] = "jepa"
    capacity: Natural | None = None  # without the slots reserved for inherited pairs


@dataclass(frozen=True)
class About:
    """The contents of ``memory.json``, see :mod:`erjepa.checkpoints.memory_file`."""

    slots: Natural
    tokenizer: str
    origins: list[str]
    inherited: Natural
    replay: Settings
    state: ReplayState
    steps_without: Natural = 0  # of the run, before it had a memory


class StoredMemory:
    """An episodic memory on disk.

    Its files stay open, so that they can be read even after their run deletes the checkpoint.

    Attributes:
        about: the contents of ``memory.json``.
        origins: names of the datasets, the oldest first; repeated names are numbered.
        tensors: the contents of ``slots.safetensors``, memory-mapped; read only.
        has_manifest: whether it is in a checkpoint with a manifest.

    Raises:
        FileNotFoundError: if the checkpoint is deleted while its files are opened.
        ValueError: if a file is missing or invalid.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        place = folder.resolve()
        try:
            self._open(place)
        except (OSError, ValueError) as error:
            if not place.parent.is_dir():
                raise FileNotFoundError(f"{folder} was deleted") from None
            if isinstance(error, FileNotFoundError):
                raise ValueError(f"{error.filename} is missing") from None
            raise ValueError(str(error)) from None

    def _open(self, place: Path) -> None:
        self.has_manifest = (place.parent / MANIFEST).exists()
        manifest = read_manifest(place.parent) if self.has_manifest else {}
        names = [ABOUT, SLOTS] + [TEXTS] * (place / TEXTS).exists()
        self._files = {name: open_regular(place / name) for name in names}
        self._listed = {name: manifest.get(f"{place.name}/{name}") for name in names}
        self._about = _read_about(self._files[ABOUT], self.folder / ABOUT)
        self.about = checked(About, self._about, str(self.folder / ABOUT))
        self.origins = numbered(self.about.origins)
        try:
            self.tensors = load_file(place / SLOTS)
        # RuntimeError: torch, which opens the file again, finds it deleted.
        except (OSError, SafetensorError, RuntimeError) as error:
            raise ValueError(
                f"{self.folder / SLOTS} cannot be read ({error})"
            ) from None
        self._check_tensors()

    def __len__(self) -> int:
        return self.about.slots

    @property
    def has_addresses(self) -> bool:
        return "address_values" in self.tensors

    @property
    def replay_settings(self) -> dict[str, Any]:
        """The section ``replay`` of the run that wrote it; empty if it was created."""
        is_of_run = "steps_without" in self._about
        return self._about["replay"] if is_of_run else {}

    @property
    def texts(self) -> BufferedReader | None:
        """The open ``texts.jsonl``, at its start; ``None`` if there is none."""
        if (file := self._files.get(TEXTS)) is not None:
            file.seek(0)
        return file

    @property
    def pairs(self) -> TokenizedPairs:
        """The pairs of all slots, with slot numbers as example ids."""
        lengths, tokens = self.tensors["lengths"], self.tensors["tokens"]
        count = torch.tensor([len(self)], dtype=torch.int32)
        return TokenizedPairs([torch.cat([count, lengths.flatten(), tokens]).numpy()])

    def origin(self, example_id: int) -> str:
        """Return the dataset of an example, as in :attr:`origins`."""
        return self.origins[self._place(example_id)]

    def dataset_name(self, example_id: int) -> str:
        """Return the name of an example's dataset, which other datasets may share."""
        return self.about.origins[self._place(example_id)]

    def _place(self, example_id: int) -> int:
        return self.about.inherited + (example_id >> ORIGIN_BITS)

    def example(self, example_id: int) -> str:
        """Return the dataset of an example and its index in all datasets of its run, one after the
        other, as ``DATASET[INDEX]``.
        """
        return f"{self.origin(example_id)}[{example_id & EXAMPLE_MASK}]"

    def where(self, slot: int) -> str:
        """Name a slot with its memory and its example, for messages."""
        example = self.example(int(self.tensors["example_ids"][slot]))
        example = self.places().get(slot, example)
        return f"slot {slot} of {self.folder} ({example})"

    def places(self) -> dict[int, str]:
        """Return file and line of the slots' examples, by slot; empty without ``texts.jsonl``."""
        if self.texts is None:
            return {}
        path = str(self.folder / TEXTS)
        places = [row.get("where") for _, row in jsonl_of(self.texts, path)]
        return dict(enumerate(checked(list[str], places, path)))

    def part(self, slots: Tensor) -> dict[str, Tensor]:
        """Return the tensors with only some ``slots``, ascending, int64."""
        lengths = self.tensors["lengths"]
        is_in = torch.zeros(len(self), dtype=torch.bool)
        is_in[slots] = True
        rows: dict[str, Tensor | slice] = {
            "tokens": is_in.repeat_interleave(lengths.sum(dim=1)),
            "generator": slice(None),
        }
        part = {name: t[rows.get(name, slots)] for name, t in self.tensors.items()}
        if not len(slots):  # as in a memory that never held a pair
            part["lengths"] = lengths.new_empty(0, 0)
        return part

    def write_part(self, folder: Path, kept: Tensor) -> None:
        """Write a memory with only the ``kept`` slots (ascending, int64), and no data of others."""
        state = self._about["state"]
        memory = {**state["memory"], "seen": self.seen_with_only(kept)}
        changed = {"slots": len(kept), "state": {**state, "memory": memory}}
        write_files(folder, self._about | changed, self.part(kept))
        if (texts := self.texts) is not None:
            lines = [row for _, row in jsonl_of(texts, str(self.folder / TEXTS))]
            rows = [lines[i] | {"slot": n} for n, i in enumerate(kept.tolist())]
            (folder / TEXTS).write_text(to_jsonl(rows), encoding="utf-8")

    def seen_with_only(self, kept: Tensor) -> tuple[int, int]:
        """Return ``seen`` of a memory with only the ``kept`` slots [n], so that these and later pairs
        are kept with equal probability: it counts as large a fraction of the offered pairs as is
        kept of the stored ones, the inherited pairs apart.
        """
        seen, before = self.about.state.memory.seen
        is_inherited = self.tensors["example_ids"] < 0
        counts = []
        for part, offered in ((is_inherited, before), (~is_inherited, seen - before)):
            fraction = int(part[kept].sum()) / int(part.sum()) if part.any() else 1.0
            counts.append(round(offered * fraction))
        return sum(counts), counts[0]

    # ---------------------------------------------------------------------- checks

    def check(self) -> None:
        """Verify all files and values, so that training needs no further checks.

        Raises:
            ValueError: naming the file that differs from the manifest, or the slot with an
                invalid value.
        """
        for name, file in self._files.items() if self.has_manifest else ():
            if (listed := self._listed[name]) is None:
                raise ValueError(f"{self.folder / name} is not listed in {MANIFEST}")
            if found := listed.difference(file):
                raise ValueError(f"{self.folder / name} {found}")
        self._check_slots()
        self.require_vocabulary(2**31)
        try:
            torch.Generator().set_state(self.tensors["generator"])
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"{self.folder / SLOTS}: generator: {error}") from None

    def require_vocabulary(self, size: int) -> None:
        """Check that all token ids are below ``size``.

        Raises:
            ValueError: naming the slot of the first that is not.
        """
        lengths, tokens = self.tensors["lengths"], self.tensors["tokens"]
        wrong = ((tokens < 0) | (tokens > size - 1)).nonzero()
        if len(wrong):
            at = wrong[0]
            slot = torch.searchsorted(lengths.sum(dim=1).cumsum(0), at, right=True)
            self._fail(
                int(slot), f"has the token {int(tokens[at])}; the vocabulary has {size}"
            )

    def _check_tensors(self) -> None:
        about, count = self.about, len(self)
        if count > about.state.memory.capacity or about.inherited > len(about.origins):
            raise ValueError(
                f"{self.folder / ABOUT} has {count} slots of "
                f"{about.state.memory.capacity}, and {about.inherited} inherited origins "
                f"of {len(about.origins)}"
            )
        expected: dict[str, tuple[torch.dtype, list[int] | None]] = {
            "example_ids": (torch.int64, [count]),
            "scores": (torch.float32, [count]),
            "replay_counts": (torch.int32, [count]),
            "lengths": (torch.int32, [count, _SEGMENTS if count else 0]),
            "tokens": (torch.int32, None),
            "generator": (torch.uint8, None),
        }
        for name, (dtype, width) in about.state.memory.addresses.columns.items():
            expected[name] = (dtype, [count, width])
        path = self.folder / SLOTS
        if wrong := self.tensors.keys() ^ expected.keys():
            name = min(wrong)
            verb = "holds" if name in self.tensors else "lacks"
            raise ValueError(f"{path} {verb} {name}, unlike what {ABOUT} describes")
        for name, (dtype, shape) in expected.items():
            tensor = self.tensors[name]
            given = list(tensor.shape)
            if tensor.dtype != dtype or (given != shape if shape else len(given) != 1):
                raise ValueError(
                    f"{path}: {name} is {tensor.dtype} {given}; {ABOUT} describes {dtype} "
                    f"{shape or '[any]'}"
                )

    def _check_slots(self) -> None:
        tensors, memory = self.tensors, self.about.state.memory
        ids, lengths = tensors["example_ids"], tensors["lengths"]
        origins, inherited = ids >> ORIGIN_BITS, self.about.inherited
        num_new = len(self.about.origins) - inherited
        rules = {
            "has an unknown origin": (origins < -inherited) | (origins >= num_new),
            "has a score that is not finite": ~tensors["scores"].isfinite(),
            "has a negative replay count": tensors["replay_counts"] < 0,
        }
        if memory.on_revisit != "append":
            repeated = pd.Series(ids.numpy()).duplicated().to_numpy(copy=True)
            is_repeated = torch.from_numpy(repeated) & (ids >= 0)
            rules["repeats the example of an earlier slot"] = is_repeated
        if len(self):
            # Only the bridge may be empty: some chat templates have none.
            rules["has an empty text"] = (lengths[:, [0, 2, 3, 4]] < 1).any(dim=1)
            rules["has a negative length"] = lengths[:, 1] < 0
        if self.has_addresses:
            norms = torch.linalg.vector_norm(tensors["address_values"], dim=1)
            is_short = norms <= _LONGEST_ADDRESS  # False for NaN, too
            rules["has an address that is not finite, or longer than 1"] = ~is_short
        if isinstance(memory.addresses, SparseAddresses):
            least, most = tensors["address_indices"].aminmax(dim=1)
            rules["has an address index out of range"] = (least < 0) | (
                most > memory.addresses.address_dim - 1
            )
        for text, is_wrong in rules.items():
            if is_wrong.any():
                self._fail(int(is_wrong.int().argmax()), text)
        if (total := int(lengths.sum())) != len(tensors["tokens"]):
            raise ValueError(
                f"{self.folder / SLOTS} holds {len(tensors['tokens'])} tokens, and the "
                f"lengths of its slots add up to {total}"
            )

    def _fail(self, slot: int, text: str) -> None:
        raise ValueError(f"{self.folder / SLOTS}: slot {slot} {text}")


def open_memory(
    path: Path,
    key: str = "",
    *,
    once: _Caller = lambda function: function(),
    on_each: _Caller = lambda function: function(),
) -> StoredMemory:
    """Open and check the episodic memory of a checkpoint, or of a run's newest checkpoint.

    Args:
        path: output folder, checkpoint, or the folder ``memory`` of one or a copy of it.
        key: config key of ``path``, for messages.
        once: calls a function once for all ranks that open the memory together.
        on_each: calls a function on every rank; an error on one is raised on all.

    Raises:
        FileNotFoundError: if there is no memory.
        ValueError: naming the damaged file and slot, and the newest older checkpoint with an
            intact memory, which is never opened automatically.
    """
    said = f"{key}: " if key else ""
    place = None
    while True:
        folder = once(lambda: _find(path, said))
        before, place = place, once(folder.resolve)
        if place == before:
            raise FileNotFoundError(
                f"{said}{folder} is not there for every rank; put it into a folder that all "
                "nodes share"
            )
        try:
            stored = on_each(partial(StoredMemory, folder))
            once(stored.check)
        except FileNotFoundError:
            continue  # its run deleted the checkpoint, and has a newer one
        except ValueError as error:
            raise ValueError(f"{said}{error}{once(partial(_other, folder))}") from None
        return stored


def memory_folder(path: Path) -> Path | None:
    """Return the folder of the memory that :func:`open_memory` opens, or ``None``.

    The averaged weights and the PEFT adapter in a checkpoint have the memory of the checkpoint.
    """
    folders = [path, path / MEMORY]
    if path.name in (EMA, PEFT):
        folders.append(path.parent / MEMORY)
    for folder in folders:
        if any((folder / name).exists() for name in (ABOUT, SLOTS)):
            return folder
    memories = [checkpoint / MEMORY for checkpoint in saved(path)]
    return memories[-1] if any(folder.exists() for folder in memories) else None


def _find(path: Path, said: str) -> Path:
    if folder := memory_folder(path):
        if folder.parent.is_symlink() and not folder.parent.exists():
            raise FileNotFoundError(f"{said}{folder.parent} links to nothing")
        return folder
    if not path.exists():
        raise FileNotFoundError(f"{said}{path} does not exist")
    raise FileNotFoundError(
        f"{said}{path} holds no memory. Give the output_dir of a run with replay, or one of "
        f"its checkpoints; their folder {MEMORY} has a {ABOUT}. After a run without replay, "
        "set init_from, its weights, and make a memory of its data for replay.init_from: "
        "erjepa memory create"
    )


def _other(folder: Path) -> str:
    """Name the newest checkpoint with an intact memory before that of ``folder``, for a message."""
    opened, of_run = folder.parent, saved(folder.parent.parent)
    before = of_run[: of_run.index(opened)] if opened in of_run else []
    for older in reversed(before):
        with contextlib.suppress(ValueError, FileNotFoundError):
            StoredMemory(older / MEMORY).check()
            return f"; to take an older memory, name its checkpoint: {older}"
    return ""


def _read_about(file: BufferedReader, path: Path) -> dict[str, Any]:
    about = parse_json(file.read(), str(path))
    file.seek(0)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(
            f"{path} does not describe a memory: its format is not {FORMAT!r}"
        )
    if about.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {about.get('version')} of the format, but only version "
            f"{VERSION} is supported; read it with the release that wrote it"
        )
    return about
