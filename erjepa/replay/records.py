"""Token storage: the bytes of each slot's tokens, cut into segments when read."""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Record = Sequence[Sequence[int]]


class RecordStore:
    """Tuples of token segments by slot, four bytes a token.

    The first record fixes the number of segments, e.g. two for (source, target).

    Args:
        capacity (int): number of slots M.
    """

    def __init__(self, capacity: int) -> None:
        self._tokens: list[bytes] = [b""] * capacity
        self._lengths = torch.empty(capacity, 0, dtype=torch.int32, device="cpu")

    def check(self, records: Sequence[Record]) -> None:
        """Raises a ValueError unless all records have the store's number of segments."""
        if not records:
            return
        expected = self._lengths.shape[1] or len(records[0])
        for record in records:
            if len(record) != expected or not expected:
                raise ValueError(
                    f"every record must have the same number of token segments "
                    f"({expected} so far, at least 1), got {len(record)}"
                )

    def write(self, slots: Sequence[int], records: Sequence[Record]) -> None:
        """Stores one record in each of the distinct ``slots``."""
        if not slots:
            return
        if not self._lengths.shape[1]:
            shape = len(self._tokens), len(records[0])
            self._lengths = torch.empty(shape, dtype=torch.int32, device="cpu")
        for slot, record in zip(slots, records, strict=True):
            self._tokens[slot] = b"".join(
                array("i", segment).tobytes() for segment in record
            )
        lengths = [[len(segment) for segment in record] for record in records]
        self._lengths[list(slots)] = torch.tensor(
            lengths, dtype=torch.int32, device="cpu"
        )

    def read(self, slots: Sequence[int]) -> list[tuple[array, ...]]:
        """The records of ``slots``, in their order, repeats included."""
        records = []
        for slot, lengths in zip(
            slots, self._lengths[list(slots)].tolist(), strict=True
        ):
            tokens, segments, start = array("i", self._tokens[slot]), [], 0
            for length in lengths:
                segments.append(tokens[start : start + length])
                start += length
            records.append(tuple(segments))
        return records

    def state_dict(self, num_slots: int) -> dict[str, Any]:
        """The first ``num_slots`` records.

        Returns:
            dict[str, Any]: ``tokens``, all tokens in one int32 tensor, and ``lengths``,
            the int32 segment lengths, shape [N, number of segments].
        """
        return {
            "tokens": _as_tensor(bytearray().join(self._tokens[:num_slots])),
            "lengths": self._lengths[:num_slots].clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the first slots from ``state``, and empties the others."""
        capacity = len(self._tokens)
        lengths = state["lengths"]
        flat = bytearray(state["tokens"].nbytes)
        _as_tensor(flat).copy_(state["tokens"])
        self._lengths = torch.empty(
            capacity, lengths.shape[1], dtype=torch.int32, device="cpu"
        )
        self._lengths[: lengths.shape[0]] = lengths
        self._tokens, start = [b""] * capacity, 0
        for slot, length in enumerate((4 * lengths.sum(dim=1)).tolist()):
            self._tokens[slot] = bytes(flat[start : start + length])
            start += length


def _as_tensor(tokens: bytearray) -> Tensor:
    """A tensor that shares the memory of ``tokens`` (frombuffer refuses an empty one)."""
    if not tokens:
        return torch.empty(0, dtype=torch.int32, device="cpu")
    return torch.frombuffer(tokens, dtype=torch.int32)
