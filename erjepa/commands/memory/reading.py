"""The slots of a stored memory as readable rows, and their nearest neighbors."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from erjepa.checkpoints.memory_file import TEXTS
from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.checkpoints.stored_memory import SparseAddresses, StoredMemory
from erjepa.configs import load
from erjepa.datasets import Pair
from erjepa.replay.addresses import Addresses, DenseAddressTable, SparseAddressTable
from erjepa.utils.checked import checked
from erjepa.utils.files import CONFIG, config_of_run
from erjepa.utils.jsonl import jsonl_of


@dataclass
class Slot:
    """One stored pair."""

    slot: int
    example: int  # id in the memory
    origin: str  # the dataset it is from
    where: str  # file and line, if known
    source: str
    target: str
    score: float  # running error
    replay_count: int
    flags: list[str] = field(default_factory=list)  # why the pair is suspect

    def row(self) -> dict[str, Any]:
        """Return the slot as a row of a table."""
        return {**asdict(self), "flags": "; ".join(self.flags)}


@dataclass(frozen=True)
class _Texts:
    """A line of ``texts.jsonl``: the texts of one slot."""

    source: str
    target: str
    where: str


def read_slots(stored: StoredMemory) -> list[Slot]:
    """Return all slots of a memory, in order.

    Raises:
        ValueError: if ``texts.jsonl`` does not match the slots; the message names the line.
    """
    columns = stored.read("example_ids", "scores", "replay_counts")
    rows = zip(*(column.tolist() for column in columns), _texts(stored), strict=True)
    return [
        Slot(
            *(slot, example, stored.origin(example)),
            *(texts.where, texts.source, texts.target, score, count),
        )
        for slot, (example, score, count, texts) in enumerate(rows)
    ]


def _texts(stored: StoredMemory) -> list[_Texts]:
    """Return the texts of each slot, from ``texts.jsonl`` or decoded from its tokens."""
    decode = None
    if stored.texts is None or not stored.has_manifest:
        decode = decoder_of(stored)
    if stored.texts is None:
        (ids,) = stored.read("example_ids")
        return [
            _Texts(*(decode or _tokens)(pair), stored.example(example_id))
            for example_id, pair in zip(ids.tolist(), stored.pairs, strict=True)
        ]
    path = str(stored.folder / TEXTS)
    lines = [
        (where, checked(_Texts, line, where))
        for where, line in jsonl_of(stored.texts, path)
    ]
    if len(lines) != len(stored):
        raise ValueError(
            f"{path} has {len(lines)} lines for {len(stored)} slots; delete it to see the "
            "tokens decoded"
        )
    if decode is not None:
        for (where, texts), pair in zip(lines, stored.pairs, strict=True):
            if decode(pair) != (texts.source, texts.target):
                raise ValueError(
                    f"{where}: not the texts of slot {pair.example_id}; delete the file to "
                    "see the tokens decoded"
                )
    return [texts for _, texts in lines]


def _tokens(pair: Pair) -> tuple[str, str]:
    return str(pair.source.tolist()), str(pair.target.tolist())


def texts_of(stored: StoredMemory) -> PairTexts | None:
    """Return the decoder of the run's tokenizer; ``None`` if the run's config is missing.

    Raises:
        ValueError: if the memory was written with another tokenizer.
    """
    if (file := config_of_run(stored.folder)) is None:
        return None
    texts = PairTexts(load(str(file)).tokenizer.build())
    if texts.fingerprint != stored.about.tokenizer:
        raise ValueError(
            f"{stored.folder} holds tokens of another tokenizer than that of {file}"
        )
    return texts


def decoder_of(stored: StoredMemory) -> Callable[[Pair], tuple[str, str]] | None:
    """Return a function that decodes pairs; ``None`` if the run's config is missing."""
    texts = texts_of(stored)
    if texts is None:
        return None

    def decode(pair: Pair) -> tuple[str, str]:
        try:
            return texts(pair.segments)
        except Exception as error:  # noqa: BLE001 - whatever a tokenizer raises
            raise ValueError(
                f"{stored.where(pair.example_id)} has tokens that the tokenizer of its "
                f"{CONFIG} cannot decode ({error})"
            ) from None

    return decode


class Neighbors:
    """Finds the slots with the most similar sources, by the cosine of addresses.

    Raises:
        ValueError: if the memory holds no addresses.
    """

    def __init__(self, stored: StoredMemory) -> None:
        if not stored.has_addresses:
            raise ValueError(
                f"{stored.folder} holds no addresses; its run replayed by token loss, with a "
                "selection that needs none"
            )
        values, *indices = stored.read("address_values", "address_indices")
        self._addresses = Addresses(values, indices[0].long() if indices else None)
        self._size = len(stored)
        made = stored.about.state.memory.addresses
        self._table: SparseAddressTable | DenseAddressTable
        if isinstance(made, SparseAddresses):
            self._table = SparseAddressTable(
                self._size,
                made.embed_dim,
                address_dim=made.address_dim,
                top_k=made.address_top_k,
                seed=made.seed,
                device="cpu",
            )
        else:
            self._table = DenseAddressTable(self._size, values.shape[1], device="cpu")
        self._table.put(torch.arange(self._size), self._addresses)

    def of(self, slot: int, count: int) -> list[tuple[int, float]]:
        """Return the other slots most similar to ``slot``, at most ``count``, with cosines."""
        address = self._addresses.rows(torch.tensor([slot]))
        found = self._highest(address, count + 1)
        return [(other, cosine) for other, cosine in found if other != slot][:count]

    def of_embedding(self, embedding: Tensor, count: int) -> list[tuple[int, float]]:
        """Return the slots most similar to an embedding z^u, [1, H], with cosines."""
        return self._highest(self._table.encode(embedding), count)

    def _highest(self, address: Addresses, count: int) -> list[tuple[int, float]]:
        cosines = self._table.similarity(address, self._size)[0]
        best = cosines.topk(min(count, self._size))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
