"""The slots of a stored memory as rows to read, and their neighbours."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor
from torchtune import config

from erjepa.checkpoints.memory_file import TEXTS, StoredMemory
from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.replay.addresses import Addresses, DenseAddressTable, SparseAddressTable
from erjepa.replay.retention import ORIGIN_BITS

CONFIG = "torchtune_config.yaml"  # that a run leaves in its folder
_AT_A_TIME = 256  # addresses compared with all slots


@dataclass
class Slot:
    """One stored pair.

    Args:
        slot (int): its place.
        example (int): its id in the memory.
        origin (str): the dataset it is from.
        where (str): file and line, where they are known.
        source (str): text.
        target (str): text.
        score (float): running JEPA error.
        replay_count (int): how many times it was replayed.
        flags (list[str]): why it is suspect.
    """

    slot: int
    example: int
    origin: str
    where: str
    source: str
    target: str
    score: float
    replay_count: int
    flags: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """As a line of a table."""
        return {**asdict(self), "flags": "; ".join(self.flags)}


def read_slots(stored: StoredMemory) -> list[Slot]:
    """All slots of a memory, in order."""
    ids, scores, counts = (
        tensor.tolist()
        for tensor in stored.read("example_ids", "scores", "replay_counts")
    )
    origins, own = stored.about["origins"], stored.about["inherited"]
    slots = []
    texts = _read_texts(stored)
    for slot, (example, score, count) in enumerate(
        zip(ids, scores, counts, strict=True)
    ):
        text = texts[slot]
        origin = origins[own + (example >> ORIGIN_BITS)]
        number = example & ((1 << ORIGIN_BITS) - 1)
        where = text.get("where", f"{origin}[{number}]")
        source, target = text["source"], text["target"]
        slots.append(Slot(slot, example, origin, where, source, target, score, count))
    return slots


def _read_texts(stored: StoredMemory) -> list[dict[str, Any]]:
    """Source and target of each slot: as written beside it, or decoded."""
    path = stored.folder / TEXTS
    if path.is_file():
        with path.open() as lines:
            texts = [json.loads(line) for line in lines]
        if len(texts) == len(stored):
            return texts
    decode = _decoder(stored.folder)
    tokens, lengths = stored.read("tokens", "lengths")
    ends = lengths.flatten().cumsum(0).tolist()
    cuts = [tokens[a:b].tolist() for a, b in zip([0, *ends], ends, strict=False)]
    segments = lengths.shape[1]
    return [
        dict(zip(("source", "target"), decode(cuts[i : i + segments]), strict=True))
        for i in range(0, len(cuts), segments or 1)
    ]


def _decoder(folder: Path):
    """Texts of tokens by the tokenizer of the run, or the tokens themselves without one."""
    for parent in folder.resolve().parents[:2]:
        if (parent / CONFIG).is_file():
            cfg = OmegaConf.load(parent / CONFIG)
            return PairTexts(config.instantiate(cfg.tokenizer))
    return lambda segments: (str(segments[0]), str(segments[2]))


class Neighbors:
    """Finds the slots whose sources are most alike.

    Args:
        stored (StoredMemory): the memory.
    """

    def __init__(self, stored: StoredMemory) -> None:
        values, *indices = stored.read("address_values", "address_indices")
        self._addresses = Addresses(values, indices[0].long() if indices else None)
        self._size = len(stored)
        self._state = stored.about["state"]["memory"]["addresses"]
        table: SparseAddressTable | DenseAddressTable
        if indices:
            table = SparseAddressTable(
                self._size,
                1,  # nothing is encoded
                address_dim=self._state["address_dim"],
                top_k=self._state["address_top_k"],
                seed=0,
                device="cpu",
            )
        else:
            table = DenseAddressTable(self._size, values.shape[1], device="cpu")
        table.put(torch.arange(self._size), self._addresses)
        self._table = table

    def cosines(self, slots: Sequence[int] | range) -> Tensor:
        """Of the sources of some slots with those of all, [n, N]."""
        rows = torch.tensor(list(slots), dtype=torch.int64)
        return self._table.similarity(self._addresses.rows(rows), self._size)

    def of(self, slot: int, count: int) -> list[tuple[int, float]]:
        """The ``count`` slots most like ``slot``, itself left out, and their cosines."""
        cosines = self.cosines([slot])[0]
        cosines[slot] = -torch.inf
        best = cosines.topk(min(count, self._size - 1))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def of_embedding(self, embedding: Tensor, count: int) -> list[tuple[int, float]]:
        """The ``count`` slots whose sources are most like an embedding, and their cosines.

        Args:
            embedding (Tensor): :math:`z^u`, [1, H].
            count (int): how many.
        """
        cosines = self._table.similarity(self._encode(embedding), self._size)[0]
        best = cosines.topk(min(count, self._size))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def _encode(self, embedding: Tensor) -> Addresses:
        if self._addresses.indices is None:
            return self._table.encode(embedding)
        return SparseAddressTable(
            0,  # nothing is put in
            self._state["embed_dim"],
            address_dim=self._state["address_dim"],
            top_k=self._state["address_top_k"],
            seed=self._state["seed"],
            device="cpu",
        ).encode(embedding)

    def nearest(self) -> tuple[list[int], list[float]]:
        """The slot most like each, and how far its source is, 1 less the cosine, as a share of
        the mean distance to all slots.
        """
        nearest, distances = [], []
        for start in range(0, self._size, _AT_A_TIME):
            slots = range(start, min(start + _AT_A_TIME, self._size))
            apart = 1 - self.cosines(slots)
            mean = apart.mean(dim=1).clamp_min(1e-12)
            apart[torch.arange(len(slots)), torch.tensor(slots)] = torch.inf
            best = apart.min(dim=1)
            nearest += best.indices.tolist()
            distances += (best.values / mean).tolist()
        return nearest, distances
