"""What passes between addresses, memory and selection for each pair of a batch."""

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
