"""The one place that reads an episodic memory from the disk."""

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
_LONGEST_ADDRESS = 1.001  # they are of length 1, up to rounding, or 0
Natural = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]


@dataclass(frozen=True)
class SparseAddresses:
    """How sparse addresses are made."""

    embed_dim: Count
    address_dim: Count
    address_top_k: Count
    seed: Seed


@dataclass(frozen=True)
class DenseAddresses:
    """How dense addresses are made."""

    embed_dim: Count


@dataclass(frozen=True)
class NoAddresses:
    """A memory whose slots have none."""


@dataclass(frozen=True)
class MemoryState:
    """What of the state of an ``EpisodicMemory`` is not a tensor."""

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
    """What of the state of an ``EpisodicReplay`` is not a tensor."""

    memory: MemoryState
    weight: WeightState | None = None


@dataclass(frozen=True)
class Settings:
    """What decides how scores are to be understood, of the section ``replay``."""

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
    """An episodic memory on the disk. Its files are held open, so that they can be read to the end
    even if the run that wrote them deletes the checkpoint.

    Attributes:
        about: the contents of ``memory.json``.
        has_manifest: whether its files are those of a checkpoint with a manifest.

    Raises:
        FileNotFoundError: if the checkpoint was deleted meanwhile.
        ValueError: if the files are not those of a memory, or not all of them.
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
            raise ValueError(f"{self.folder / SLOTS} is not whole ({error})") from None
        self._check_header()

    def __len__(self) -> int:
        return self.about.slots

    @property
    def has_addresses(self) -> bool:
        """Whether its run kept any."""
        return self.about.state.memory.addresses != NoAddresses()

    @property
    def texts(self) -> BufferedReader | None:
        """The open ``texts.jsonl``, at its start, if there is one."""
        if (file := self._files.get(TEXTS)) is not None:
            file.seek(0)
        return file

    @property
    def pairs(self) -> TokenizedPairs:
        """The pairs of all slots; their example ids are the slots."""
        lengths, tokens = self.read("lengths", "tokens")
        count = torch.tensor([len(self)], dtype=torch.int32)
        return TokenizedPairs([torch.cat([count, lengths.flatten(), tokens]).numpy()])

    def origin(self, example_id: int) -> str:
        """The dataset that an example of the memory is from."""
        return self.about.origins[self.about.inherited + (example_id >> ORIGIN_BITS)]

    def example(self, example_id: int) -> str:
        """The dataset of an example, and its number there."""
        return f"{self.origin(example_id)}[{example_id & ((1 << ORIGIN_BITS) - 1)}]"

    def where(self, slot: int) -> str:
        """A slot, its memory and its example."""
        (ids,) = self.read("example_ids")
        return f"slot {slot} of {self.folder} ({self.example(int(ids[slot]))})"

    def read(self, *names: str) -> list[Tensor]:
        """Whole tensors, by their names in the file; those it lacks are left out."""
        present = self._tensors.keys()
        return [self._tensors.get_tensor(name) for name in names if name in present]

    def blocks(self, slots: Tensor | None = None) -> Iterator[tuple[int, dict]]:
        """The state of an ``EpisodicReplay``, some thousand slots at a time: how many slots came
        before, and the state of a range.

        Args:
            slots: those to read, ascending, int64; ``None``: all.
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
        """Let ``replay`` continue where the memory was written.

        Raises:
            ValueError: naming the key, if its settings differ.
        """
        for start, state in self.blocks():
            replay.load_state_dict(state, start)

    def write_part(self, folder: Path, kept: Tensor) -> None:
        """Write a memory of some of the slots into another folder; nothing of the others is in it.

        Args:
            kept: slots, ascending, int64.
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

    # ----------------------------------------------------------------- what is wrong

    def check(self) -> None:
        """Read all of it: afterwards it can be trained on without further checks.

        Raises:
            ValueError: naming the file, if it is not the one that the manifest lists, and
                the slot, if one holds what no run writes.
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
        """Fail unless all tokens are below ``size``.

        Raises:
            ValueError: naming the slot.
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
        """Names, types and shapes of the tensors."""
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
            "is of no origin": (origins < -inherited) | (origins >= own),
            "has a score that is not finite": ~scores.isfinite(),
            "has a negative replay count": counts < 0,
        }
        if self.about.state.memory.on_revisit != "append":
            rules["has the example of an earlier slot"] = _repeated(ids) & (ids >= 0)
        if len(self):
            # All but the bridge, which a chat template may do without.
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
            is_wrong = ~(norms <= _LONGEST_ADDRESS)  # or not a number
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
    """Open and check the episodic memory of a run's newest checkpoint, or of a checkpoint.

    Args:
        path: output folder, checkpoint, or the folder ``memory`` of one, which may be a copy.
        key: that names it, for messages.
        once: calls a function once for all processes that open the memory together.
        on_each: calls a function on each of them; what fails on one, fails on all.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: in one line, naming the file and the slot that cannot be trusted, and an
            older checkpoint whose memory can; an older one is never taken by itself.
    """
    said = f"{key}: " if key else ""
    while True:
        folder = once(lambda: _find(path, said))
        try:
            stored = on_each(partial(StoredMemory, folder))
            once(stored.check)
        except FileNotFoundError:
            continue  # the run that writes them has deleted it; it has a newer one
        except ValueError as error:
            raise ValueError(f"{said}{error}{once(lambda: _other(path))}") from None
        return stored


def memory_folder(path: Path) -> Path | None:
    """The folder of the memory that :func:`open_memory` opens, if there is one."""
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
    """The newest older checkpoint with an intact memory, for a message."""
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
            f"{path} has version {about.get('version')} of the format, and version "
            f"{VERSION} is known here; read it with the release that wrote it"
        )
    return checked(About, about, str(path))


def _first_outside(values: Tensor, stop: int) -> int | None:
    """Place of the first of ``values``, flattened, outside 0 ... stop - 1."""
    if not values.numel():
        return None
    least, most = (int(value) for value in values.aminmax())
    if 0 <= least and most < stop:
        return None
    values = values.flatten().long()
    return int(((values < 0) | (values >= stop)).int().argmax())


def _repeated(ids: Tensor) -> Tensor:
    """Where an id is one that comes before, bool [N]."""
    ascending, order = ids.sort(stable=True)
    found = torch.zeros(len(ids), dtype=torch.bool)
    found[order[1:][ascending[1:] == ascending[:-1]]] = True
    return found
