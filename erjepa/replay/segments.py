"""The tokens of stored pairs, split into segments."""

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

# The tokens of a pair, split into segments such as source and target.
Segments = tuple[array, ...]


class SegmentStore:
    """The tokens of each slot's pair as bytes, four per token, split into segments when read.

    All pairs have as many segments as the first, e.g. two for (source, target).
    """

    def __init__(self, capacity: int) -> None:
        self._tokens: list[bytes] = [b""] * capacity
        self._lengths = torch.empty(capacity, 0, dtype=torch.int32, device="cpu")

    def write(self, slots: Sequence[int], pairs: Sequence[Segments]) -> None:
        """Store the segments of one pair in each of the distinct ``slots``."""
        if not slots:
            return
        for slot, segments in zip(slots, pairs, strict=True):
            self._tokens[slot] = b"".join(
                array("i", segment).tobytes() for segment in segments
            )
        lengths = [[len(segment) for segment in segments] for segments in pairs]
        self._set_lengths(
            list(slots), torch.tensor(lengths, dtype=torch.int32, device="cpu")
        )

    def read(self, slots: Sequence[int]) -> list[tuple[array, ...]]:
        """Return the pairs in ``slots``, in their order, repeats included."""
        pairs = []
        all_lengths = self._lengths[list(slots)].tolist()
        for slot, lengths in zip(slots, all_lengths, strict=True):
            tokens = array("i", self._tokens[slot])
            edges = pairwise(accumulate(lengths, initial=0))
            pairs.append(tuple(tokens[start:stop] for start, stop in edges))
        return pairs

    def tensors(self, size: int) -> dict[str, Tensor]:
        """Return the segment lengths [N, segments] and all tokens of the first ``size`` slots."""
        tokens = bytearray().join(self._tokens[:size])
        flat = torch.empty(0, dtype=torch.int32, device="cpu")
        if tokens:  # frombuffer rejects an empty buffer
            flat = torch.frombuffer(tokens, dtype=torch.int32)
        return {"lengths": self._lengths[:size], "tokens": flat}

    def load(self, tensors: Mapping[str, Tensor], at: int) -> None:
        """Copy slots from :meth:`tensors` to ``at`` and on, and empty those after them."""
        lengths, tokens = tensors["lengths"], tensors["tokens"].numpy()
        stop, start = at + len(lengths), 0
        if len(lengths):
            self._set_lengths(slice(at, stop), lengths)
        for slot, size in enumerate(lengths.sum(dim=1).tolist(), at):
            self._tokens[slot] = tokens[start : start + size].tobytes()
            start += size
        self._tokens[stop:] = [b""] * (len(self._tokens) - stop)

    def _set_lengths(self, slots: slice | list[int], lengths: Tensor) -> None:
        capacity, count = len(self._tokens), lengths.shape[1]
        if self._lengths.shape[1] != count:
            self._lengths = torch.empty(
                capacity, count, dtype=torch.int32, device="cpu"
            )
        self._lengths[slots] = lengths
