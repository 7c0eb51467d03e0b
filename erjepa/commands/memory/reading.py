"""The slots of a stored memory as a data frame, and the nearest neighbors of an address."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from erjepa.checkpoints.memory_file import TEXTS
from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.checkpoints.stored_memory import StoredMemory
from erjepa.configs import load
from erjepa.datasets import Pair
from erjepa.replay.addresses import Addresses, AddressTable, build_table
from erjepa.utils.checked import checked
from erjepa.utils.escape import one_line
from erjepa.utils.files import CONFIG, config_of_run
from erjepa.utils.jsonl import jsonl_of

_WIDTH = 60  # characters of a source or target in a line


@dataclass(frozen=True)
class _Texts:
    """A line of ``texts.jsonl``: the texts of one slot."""

    source: str
    target: str
    where: str


def read_slots(stored: StoredMemory) -> pd.DataFrame:
    """Read all slots of a memory, one row each.

    Columns: ``slot``, ``example`` (its id in the memory), ``origin`` (the dataset it is from),
    ``where`` (file and line, if known; the file numbered as the origin is), ``source``, ``target``,
    ``score`` (running error) and ``replay_count``.

    Raises:
        ValueError: if ``texts.jsonl`` does not match the slots; the message names the line.
    """
    tensors = stored.tensors
    # Objects, since Arrow's strings hold no lone surrogates.
    columns = ["where", "source", "target"]
    texts = pd.DataFrame(_texts(stored), columns=columns, dtype=object)
    ids = tensors["example_ids"].tolist()
    texts["where"] = [
        _numbered(stored, *place) for place in zip(ids, texts["where"], strict=True)
    ]
    return pd.DataFrame(
        {
            "slot": range(len(stored)),
            "example": tensors["example_ids"].numpy(),
            "origin": [stored.origin(i) for i in ids],
            **texts,
            "score": tensors["scores"].double().numpy(),
            "replay_count": tensors["replay_counts"].numpy(),
        }
    )


def _texts(stored: StoredMemory) -> list[_Texts]:
    """Return the texts of each slot, from ``texts.jsonl`` or decoded from its tokens."""
    decoder = None
    if stored.texts is None or not stored.has_manifest:
        decoder = texts_of(stored)
    if stored.texts is None:
        ids = stored.tensors["example_ids"].tolist()
        return [
            _Texts(*_decoded(stored, decoder, pair), stored.example(example_id))
            for example_id, pair in zip(ids, stored.pairs, strict=True)
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
    if decoder is not None:
        for (where, texts), pair in zip(lines, stored.pairs, strict=True):
            if _decoded(stored, decoder, pair) != (texts.source, texts.target):
                raise ValueError(
                    f"{where}: not the texts of slot {pair.example_id}; delete the file to "
                    "see the tokens decoded"
                )
    return [texts for _, texts in lines]


def _numbered(stored: StoredMemory, example_id: int, where: str) -> str:
    """Return file and line of an example, with the number of its dataset if the name repeats."""
    name, origin = stored.dataset_name(example_id), stored.origin(example_id)
    if where.startswith(origin) or not where.startswith(name):
        return where
    return origin + where.removeprefix(name)


def has_unverified_texts(stored: StoredMemory) -> bool:
    """Return whether the texts are compared with neither a manifest nor the decoded tokens."""
    is_compared = stored.has_manifest or config_of_run(stored.folder) is not None
    return stored.texts is not None and not is_compared


def pair_line(slot: Any) -> str:
    """Return file and line, source and target of a row of :func:`read_slots`, shortened."""
    source, target = one_line(slot.source, _WIDTH), one_line(slot.target, _WIDTH)
    return f"{one_line(slot.where)}: {source} -> {target}"


def _decoded(
    stored: StoredMemory, decoder: PairTexts | None, pair: Pair
) -> tuple[str, str]:
    """Return source and target of a slot's pair; without a decoder, their token ids."""
    if decoder is None:
        return str(pair.source.tolist()), str(pair.target.tolist())
    try:
        return decoder(pair.segments)
    except Exception as error:  # noqa: BLE001 - whatever a tokenizer raises
        raise ValueError(
            f"{stored.where(pair.example_id)} has tokens that the tokenizer of its "
            f"{CONFIG} cannot decode ({error})"
        ) from None


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


def address_table(stored: StoredMemory) -> tuple[AddressTable, Addresses]:
    """Return a table of the addresses of all slots, for lookups, and these addresses.

    Raises:
        ValueError: if the memory holds no addresses.
    """
    if not stored.has_addresses:
        raise ValueError(
            f"{stored.folder} holds no addresses; a run with replay.selection=content or mixed "
            "stores them"
        )
    values = stored.tensors["address_values"]
    indices = stored.tensors.get("address_indices")
    addresses = Addresses(values, None if indices is None else indices.long())
    table = build_table(len(stored), stored.about.state.memory.addresses, "cpu")
    assert table is not None
    table.put(torch.arange(len(stored)), addresses)
    return table, addresses


def nearest(table: AddressTable, address: Addresses, size: int) -> pd.Series:
    """Return the cosines of the first ``size`` slots with one address, the largest first."""
    cosines = pd.Series(table.similarity(address, size)[0].numpy())
    return cosines.sort_values(ascending=False, kind="stable")
