"""What passes between addresses, memory and selection for each pair of a batch."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor


class Codes(NamedTuple):
    """Unit vectors of B addresses.

    Attributes:
        values (Tensor): float32, shape [B, H] when dense; the kept entries, shape [B, K],
            when sparse.
        indices (Tensor | None): positions of the kept entries, ascending, int64, [B, K].
    """

    values: Tensor
    indices: Tensor | None = None

    def rows(self, rows: Tensor | slice) -> "Codes":
        """The codes of some rows of the batch."""
        indices = None if self.indices is None else self.indices[rows]
        return Codes(self.values[rows], indices)

    def split(self, size: int) -> Iterator["Codes"]:
        """The codes in their order, ``size`` at a time."""
        for start in range(0, len(self.values), size):
            yield self.rows(slice(start, start + size))
