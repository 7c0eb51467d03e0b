"""Assignment of pairs to rows.

Pairs are sorted by their tokens, and each row holds consecutive pairs, because these share most.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from erjepa.packing.mask import BLOCK

# Attending to this many tokens costs about as much as all other computation of a token, for small
# models on a CPU. Measured costs are flat around the number of rows that results.
_ATTENTION = 2048


class Sharing(NamedTuple):
    """Which nodes of a tree n items use: one entry per item and node, sorted by node, then item."""

    num_items: int  # n
    node: np.ndarray  # int64 [entries]
    item: np.ndarray  # int64 [entries]
    # The previous item that uses the node, or -1, int64 [entries].
    previous: np.ndarray

    def nodes(self, items: range) -> np.ndarray:
        """Return the nodes that a range of items uses, ascending."""
        first = (self.item >= items.start) & (self.item < items.stop)
        return self.node[first & (self.previous < items.start)]

    def sizes(self) -> list[list[int]]:
        """Return the number of nodes that items a to b use, b included, as ``[a][b]`` of [n][n]."""
        n = self.num_items
        entries = self.item * (n + 1) + self.previous + 1
        by_previous = np.bincount(entries, minlength=n * (n + 1)).reshape(n, n + 1)
        # Number of nodes of item b that items a to b - 1 do not use.
        added = by_previous.cumsum(axis=1)[:, :n].T
        return np.triu(added).cumsum(axis=1).tolist()


def share(items: Sequence[Sequence[np.ndarray]]) -> Sharing:
    """Find which nodes items share; each item is given as paths of nodes."""
    n = len(items)
    paths = [path for paths in items for path in paths]
    per_item = [sum(map(len, paths)) for paths in items]
    nodes = np.concatenate([np.zeros(0, np.int64), *paths])
    # A stable sort is fast on keys of a few ascending runs; np.unique would hash them.
    keys = np.sort(nodes * n + np.repeat(np.arange(n), per_item), kind="stable")
    node, item = np.divmod(keys[np.diff(keys, prepend=-1) > 0], max(n, 1))
    previous = np.full(len(node), -1)
    again = node[1:] == node[:-1]
    previous[1:][again] = item[:-1][again]
    return Sharing(n, node, item, previous)


def fill(sizes: Sequence[Sequence[int]], row_length: int) -> list[range]:
    """Split items greedily into the fewest ranges of at most ``row_length`` nodes, which each item
    must fit. ``sizes`` is the result of :meth:`Sharing.sizes`.
    """
    runs, start = [], 0
    while start < len(sizes):
        stop = bisect_right(sizes[start], row_length)
        runs.append(range(start, stop))
        start = stop
    return runs


def balanced(
    sizes: Sequence[Sequence[int]], row_length: int, num_rows: int
) -> list[range]:
    """Split items into ``num_rows`` ranges, the largest of which is as small as possible.

    So many ranges of at most ``row_length`` nodes must suffice. If there are fewer items, some
    ranges are empty.
    """
    runs = [range(0)]
    if sizes:
        longest = max(sizes[i][i] for i in range(len(sizes)))
        least = max(longest, -(-sizes[0][-1] // num_rows))
        choices = range(least, row_length)
        fits = bisect_left(choices, True, key=lambda n: len(fill(sizes, n)) <= num_rows)
        runs = fill(sizes, least + fits)
    while len(runs) < num_rows:  # items share nearly all nodes, or are too few
        largest = runs.index(max(runs, key=len))
        half = -(-len(runs[largest]) // 2)
        runs[largest : largest + 1] = runs[largest][:half], runs[largest][half:]
    return runs


def cheapest(
    sizes: Sequence[Sequence[int]], row_length: int, at_least: int = 1
) -> list[range]:
    """Split items as :func:`balanced` does, into the cheapest number of rows, ``at_least`` or more.

    Rows are trimmed to the fullest one. The cost is that of their tokens and of attention, which
    covers whole rows: more rows share fewer tokens, but two rows of 100 tokens need half the
    attention of one row of 200.
    """

    def cost(rows: list[range]) -> int:
        return _cost(len(rows), fullest(sizes, rows))

    best = rows = balanced(
        sizes, row_length, max(len(fill(sizes, row_length)), at_least)
    )
    longest = max((sizes[i][i] for i in range(len(sizes))), default=0)
    # Rows are at least as long as the longest item, so this is a lower bound of the cost.
    while _cost(more := round_up(len(rows) + 1), longest) < cost(best):
        rows = balanced(sizes, row_length, more)
        best = min(best, rows, key=cost)
    return best


def _cost(num_rows: int, length: int) -> int:
    return num_rows * length * (_ATTENTION + length)


def fullest(sizes: Sequence[Sequence[int]], rows: Sequence[range]) -> int:
    """Return the number of nodes in the fullest row."""
    return max((sizes[row[0]][row[-1]] for row in rows if row), default=0)


def round_up(size: int) -> int:
    """Round ``size`` up to one of few values: 1 to 8, then 10, 12, 14, 16, 20, 24, 28, 32, 40 ...

    The result is at most a quarter larger. Kernels are compiled anew for each size.
    """
    step = 1 << max(size.bit_length() - 3, 0)
    return -(-size // step) * step


def halved_length(length: int, row_length: int) -> int:
    """Halve ``row_length`` while it holds ``length`` and stays a multiple of :data:`BLOCK`."""
    while row_length % (2 * BLOCK) == 0 and row_length // 2 >= length:
        row_length //= 2
    return row_length
