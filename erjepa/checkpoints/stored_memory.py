"""Reading and verification of episodic memories on disk."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, FiniteFloat
from safetensors import SafetensorError, safe_open
from torch import Tensor

from erjepa.checkpoints.checkpoint import MEMORY, checkpoints
from erjepa.checkpoints.manifest import MANIFEST, read_manifest
from erjepa.checkpoints.memory_file import (
    ABOUT,
    BLOCK,
    FORMAT,
    PLACES,
    SLOTS,
    TEXTS,
    VERSION,
    write_about,
    write_slots,
)
from erjepa.datasets import Pair, TokenizedPairs
from erjepa.replay import EpisodicReplay
from erjepa.replay.retention import ORIGIN_BITS
from erjepa.utils.checked import checked
from erjepa.utils.files import open_regular
from erjepa.utils.jsonl import jsonl_of, parse_json, to_jsonl

_Caller = Callable[[Callable[[], Any]], Any]
_SEGMENTS = len(Pair._fields) - 1
_LONGEST_ADDRESS = 1.001  # the norm of an address is 1, up to rounding, or 0
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]


@dataclass(frozen=True)
class SparseAddresses:
    """How sparse addresses are computed."""

    embed_dim: Count
    address_dim: Count
    address_top_k: Count
    seed: Seed


@dataclass(frozen=True)
class DenseAddresses:
    """How dense addresses are computed."""

    embed_dim: Count


@dataclass(frozen=True)
class NoAddresses:
    """The slots have no addresses."""


@dataclass(frozen=True)
class MemoryState:
    """The state of an ``EpisodicMemory`` without tensors."""

    capacity: Natural
    on_revisit: Literal["keep", "refresh", "append"]
    seen: tuple[Natural, Natural]
    addresses: Annotated[
        SparseAddresses | DenseAddresses | NoAddresses,
        Field(union_mode="left_to_right"),
    ]


@dataclass(frozen=True)
class WeightState:
    """The running means of ``replay.weight=auto``."""

    means: tuple[FiniteFloat, FiniteFloat] | None


@dataclass(frozen=True)
class ReplayState:
    """The state of an ``EpisodicReplay`` without tensors."""

    memory: MemoryState
    weight: WeightState | None = None


@dataclass(frozen=True)
class Settings:
    """The keys of the section ``replay`` that define what scores mean."""

    score: Literal["jepa", "lm"] = "jepa"


@dataclass(frozen=True)
class About:
    """The contents of ``memory.json``, see :mod:`erjepa.checkpoints.memory_file`."""

    slots: Natural
    tokenizer: str
    origins: list[str]
    inherited: Natural
    replay: Settings
    state: ReplayState


class StoredMemory:
    """An episodic memory on disk.

    Its files stay open, so that they can be read even after their run deletes the checkpoint.

    Attributes:
        about: the contents of ``memory.json``.
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
        except (OSError, SafetensorError, ValueError) as error:
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
        self.about = _read_about(self._files[ABOUT], self.folder / ABOUT)
        try:
            self._tensors = safe_open(place / SLOTS, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{self.folder / SLOTS} cannot be read ({error})"
            ) from None
        self._check_header()

    def __len__(self) -> int:
        return self.about.slots

    @property
    def has_addresses(self) -> bool:
        """Whether the slots have addresses."""
        return self.about.state.memory.addresses != NoAddresses()

    @property
    def texts(self) -> BufferedReader | None:
        """The open ``texts.jsonl``, at its start; ``None`` if there is none."""
        if (file := self._files.get(TEXTS)) is not None:
            file.seek(0)
        return file

    @property
    def pairs(self) -> TokenizedPairs:
        """The pairs of all slots, with slot numbers as example ids."""
        lengths, tokens = self.read("lengths", "tokens")
        count = torch.tensor([len(self)], dtype=torch.int32)
        return TokenizedPairs([torch.cat([count, lengths.flatten(), tokens]).numpy()])

    def origin(self, example_id: int) -> str:
        """Return the name of the dataset of an example."""
        return self.about.origins[self.about.inherited + (example_id >> ORIGIN_BITS)]

    def example(self, example_id: int) -> str:
        """Return the dataset of an example and its index there, as ``DATASET[INDEX]``."""
        return f"{self.origin(example_id)}[{example_id & ((1 << ORIGIN_BITS) - 1)}]"

    def where(self, slot: int) -> str:
        """Name a slot with its memory and its example, for messages."""
        (ids,) = self.read("example_ids")
        return f"slot {slot} of {self.folder} ({self.example(int(ids[slot]))})"

    def read(self, *names: str) -> list[Tensor]:
        """Read whole tensors by their names in the file; absent ones are left out."""
        present = self._tensors.keys()
        return [self._tensors.get_tensor(name) for name in names if name in present]

    def blocks(self, slots: Tensor | None = None) -> Iterator[tuple[int, dict]]:
        """Yield the state of an ``EpisodicReplay`` in blocks of slots, each after the number of
        slots in earlier blocks.

        Args:
            slots: slots to read, ascending, int64; ``None``: all.
        """
        slices = {name: self._tensors.get_slice(name) for name in self._tensors.keys()}  # noqa: SIM118
        generator, token, read = self._tensors.get_tensor("generator"), 0, 0
        for start in range(0, max(len(self), 1), BLOCK):
            part = slice(start, min(start + BLOCK, len(self)))
            lengths = slices["lengths"][part]
            stop = token + int(lengths.sum())
            of_slots = {
                name: slices[name][part]
                for name in slices.keys() - {"generator", "tokens"}
            }
            tokens, token = slices["tokens"][token:stop], stop
            if slots is not None:
                is_read = torch.zeros(len(lengths), dtype=torch.bool)
                is_read[slots[(slots >= start) & (slots < part.stop)] - start] = True
                tokens = tokens[is_read.repeat_interleave(lengths.sum(dim=1))]
                of_slots = {name: rows[is_read] for name, rows in of_slots.items()}
            tensors = {**of_slots, "tokens": tokens, "generator": generator}
            yield read, self._state(tensors)
            read += len(of_slots["lengths"])

    def _state(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        state = asdict(self.about.state)
        if state["weight"] is None:
            del state["weight"]
        for name, tensor in tensors.items():
            *sections, key = PLACES[name]
            section = state
            for part in sections:
                section = section.setdefault(part, {})
            section[key] = tensor
        return state

    def load_into(self, replay: EpisodicReplay) -> None:
        """Load the stored state into ``replay``.

        Raises:
            ValueError: naming the key, if the settings of ``replay`` differ.
        """
        for start, state in self.blocks():
            replay.load_state_dict(state, start)

    def write_part(self, folder: Path, kept: Tensor) -> None:
        """Write a memory with only some of the slots, and no data of the others.

        Args:
            kept: slots to write, ascending, int64.
        """
        about = parse_json(self._files[ABOUT].read(), str(self.folder / ABOUT))
        self._files[ABOUT].seek(0)
        write_about(folder, about | {"slots": len(kept)})
        (lengths,) = self.read("lengths")
        states = [state for _, state in self.blocks(kept)]
        if not len(kept):  # as in a memory that never held a pair
            states[0]["memory"]["records"]["lengths"] = lengths.new_empty(0, 0)
        write_slots(folder, states, len(kept), int(lengths[kept].sum()))
        if (texts := self.texts) is not None:
            lines = [row for _, row in jsonl_of(texts, str(self.folder / TEXTS))]
            rows = [lines[i] | {"slot": n} for n, i in enumerate(kept.tolist())]
            (folder / TEXTS).write_text(to_jsonl(rows))

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
        self._check_pairs()
        self._check_addresses()
        try:
            torch.Generator().set_state(self._tensors.get_tensor("generator"))
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"{self.folder / SLOTS}: generator: {error}") from None

    def require_vocabulary(self, size: int) -> None:
        """Check that all token ids are below ``size``.

        Raises:
            ValueError: naming the slot of the first that is not.
        """
        tokens, lengths = self.read("tokens", "lengths")
        at = _first_outside(tokens, size)
        if at is not None:
            ends = lengths.sum(dim=1).cumsum(0)
            slot = int(torch.searchsorted(ends, at, right=True))
            self._fail(
                slot, f"has the token {int(tokens[at])}; the vocabulary has {size}"
            )

    def _check_header(self) -> None:
        about, count = self.about, len(self)
        if count > about.state.memory.capacity or about.inherited > len(about.origins):
            raise ValueError(
                f"{self.folder / ABOUT} has {count} slots of "
                f"{about.state.memory.capacity}, and {about.inherited} inherited origins "
                f"of {len(about.origins)}"
            )
        expected: dict[str, tuple[str, list[int] | None]] = {
            "example_ids": ("I64", [count]),
            "scores": ("F32", [count]),
            "replay_counts": ("I32", [count]),
            "lengths": ("I32", [count, _SEGMENTS if count else 0]),
            "tokens": ("I32", None),
            "generator": ("U8", None),
        }
        match about.state.memory.addresses:
            case SparseAddresses(address_dim=dim, address_top_k=top_k):
                narrow = "I16" if dim <= 32767 else "I32"
                expected["address_values"] = ("F32", [count, top_k])
                expected["address_indices"] = (narrow, [count, top_k])
            case DenseAddresses(embed_dim=dim):
                expected["address_values"] = ("F32", [count, dim])
        path, present = self.folder / SLOTS, set(self._tensors.keys())
        if wrong := present ^ expected.keys():
            name = min(wrong)
            verb = "holds" if name in present else "lacks"
            raise ValueError(f"{path} {verb} {name}, unlike what {ABOUT} describes")
        for name, (dtype, shape) in expected.items():
            tensor = self._tensors.get_slice(name)
            found, own = tensor.get_dtype(), tensor.get_shape()
            if found != dtype or (own != shape if shape else len(own) != 1):
                raise ValueError(
                    f"{path}: {name} is {found} {own}; {ABOUT} describes {dtype} "
                    f"{shape or '[any]'}"
                )

    def _check_pairs(self) -> None:
        ids, scores, counts, lengths, tokens = self.read(
            "example_ids", "scores", "replay_counts", "lengths", "tokens"
        )
        origins, inherited = ids >> ORIGIN_BITS, self.about.inherited
        own = len(self.about.origins) - inherited
        rules = {
            "has an unknown origin": (origins < -inherited) | (origins >= own),
            "has a score that is not finite": ~scores.isfinite(),
            "has a negative replay count": counts < 0,
        }
        if self.about.state.memory.on_revisit != "append":
            rules["repeats the example of an earlier slot"] = _repeated(ids) & (
                ids >= 0
            )
        if len(self):
            # Only the bridge may be empty: some chat templates have none.
            rules["has an empty text"] = (lengths[:, [0, 2, 3, 4]] < 1).any(dim=1)
            rules["has a negative length"] = lengths[:, 1] < 0
        for text, is_wrong in rules.items():
            if is_wrong.any():
                self._fail(int(is_wrong.int().argmax()), text)
        if (total := int(lengths.sum())) != len(tokens):
            raise ValueError(
                f"{self.folder / SLOTS} holds {len(tokens)} tokens, and the lengths of its "
                f"slots add up to {total}"
            )
        self.require_vocabulary(2**31)

    def _check_addresses(self) -> None:
        for values in self.read("address_values"):
            norms = torch.linalg.vector_norm(values, dim=1)
            is_wrong = ~(norms <= _LONGEST_ADDRESS)  # True for NaN, too
            if is_wrong.any():
                self._fail(
                    int(is_wrong.int().argmax()),
                    "has an address that is not finite, or longer than 1",
                )
        addresses = self.about.state.memory.addresses
        if isinstance(addresses, SparseAddresses):
            (indices,) = self.read("address_indices")
            at = _first_outside(indices, addresses.address_dim)
            if at is not None:
                self._fail(at // indices.shape[1], "has an address index out of range")

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
    while True:
        folder = once(lambda: _find(path, said))
        try:
            stored = on_each(partial(StoredMemory, folder))
            once(stored.check)
        except FileNotFoundError:
            continue  # its run deleted the checkpoint, and has a newer one
        except ValueError as error:
            raise ValueError(f"{said}{error}{once(lambda: _other(path))}") from None
        return stored


def memory_folder(path: Path) -> Path | None:
    """Return the folder of the memory that :func:`open_memory` opens, or ``None``."""
    for folder in (path, path / MEMORY):
        if any((folder / name).exists() for name in (ABOUT, SLOTS)):
            return folder
    memories = [checkpoint / MEMORY for checkpoint in checkpoints(path)]
    return memories[-1] if any(folder.exists() for folder in memories) else None


def _find(path: Path, said: str) -> Path:
    if folder := memory_folder(path):
        return folder
    if not path.exists():
        raise FileNotFoundError(f"{said}{path} does not exist")
    raise FileNotFoundError(
        f"{said}{path} holds no memory. Give the output_dir of a run with replay, or one of "
        f"its checkpoints; their folder {MEMORY} has a {ABOUT}. After a run without replay, "
        "set init_from, its weights, and make a memory of its data for replay.init_from: "
        "erjepa memory create"
    )


def _other(path: Path) -> str:
    """Name the newest older checkpoint with an intact memory, for a message."""
    for older in checkpoints(path)[-2::-1]:
        with contextlib.suppress(ValueError, FileNotFoundError):
            StoredMemory(older / MEMORY).check()
            return f"; to take an older memory, name its checkpoint: {older}"
    return ""


def _read_about(file: BufferedReader, path: Path) -> About:
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
    return checked(About, about, str(path))


def _first_outside(values: Tensor, stop: int) -> int | None:
    """Return the index of the first of the flattened values outside 0 ... stop - 1."""
    if not values.numel():
        return None
    least, most = (int(value) for value in values.aminmax())
    if 0 <= least and most < stop:
        return None
    values = values.flatten().long()
    return int(((values < 0) | (values >= stop)).int().argmax())


def _repeated(ids: Tensor) -> Tensor:
    """Return whether each id repeats an earlier one, bool [N]."""
    ascending, order = ids.sort(stable=True)
    found = torch.zeros(len(ids), dtype=torch.bool)
    found[order[1:][ascending[1:] == ascending[:-1]]] = True
    return found
