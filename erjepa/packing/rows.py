"""Which pairs share a row.

Pairs are put in the order of their tokens, and rows are runs of them: neighbours share most.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Attention to so many slots costs about what all else does that is computed for a slot, for
# small models on a CPU; measured, the best number of rows is flat around what this gives.
_ATTENTION = 2048


class Sharing(NamedTuple):
    """Which nodes of a tree n items take; one entry for an item and a node of it, in the order of
    nodes, then of items.
    """

    num_items: int  # n
    node: np.ndarray  # int64 [entries]
    item: np.ndarray  # int64 [entries]
    # The last item before that takes the node, or -1, int64 [entries].
    previous: np.ndarray

    def nodes(self, items: range) -> np.ndarray:
        """The nodes that a run of items takes, ascending."""
        first = (self.item >= items.start) & (self.item < items.stop)
        return self.node[first & (self.previous < items.start)]

    def sizes(self) -> list[list[int]]:
        """Numbers of nodes: ``sizes()[a][b]`` of the items from a to b, both included; [n][n]."""
        n = self.num_items
        entries = self.item * (n + 1) + self.previous + 1
        by_previous = np.bincount(entries, minlength=n * (n + 1)).reshape(n, n + 1)
        # What item b adds to a run from a on: nodes that no item from a on takes before it.
        added = by_previous.cumsum(axis=1)[:, :n].T
        return np.triu(added).cumsum(axis=1).tolist()


def share(items: Sequence[Sequence[np.ndarray]]) -> Sharing:
    """How items share nodes, each given as paths of nodes."""
    n = len(items)
    paths = [path for paths in items for path in paths]
    per_item = [sum(map(len, paths)) for paths in items]
    nodes = np.concatenate([np.zeros(0, np.int64), *paths])
    node, item = np.divmod(
        np.unique(nodes * n + np.repeat(np.arange(n), per_item)), max(n, 1)
    )
    previous = np.full(len(node), -1)
    again = node[1:] == node[:-1]
    previous[1:][again] = item[:-1][again]
    return Sharing(n, node, item, previous)


def fill(sizes: Sequence[Sequence[int]], row_length: int) -> list[range]:
    """Cut items into the fewest runs of at most ``row_length`` nodes, which each item fits; each
    run takes as many as it can. ``sizes`` are those of :meth:`Sharing.sizes`.
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
    """Cut items into ``num_rows`` runs of which the largest is as small as it can be.

    That many runs of at most ``row_length`` nodes are enough; some are empty where there are fewer
    items.
    """
    runs = [range(0)]
    if sizes:
        longest = max(sizes[i][i] for i in range(len(sizes)))
        least = max(longest, -(-sizes[0][-1] // num_rows))
        choices = range(least, row_length)
        fits = bisect_left(choices, True, key=lambda n: len(fill(sizes, n)) <= num_rows)
        runs = fill(sizes, least + fits)
    while len(runs) < num_rows:  # of items that share nearly all, or too few items
        largest = runs.index(max(runs, key=len))
        half = -(-len(runs[largest]) // 2)
        runs[largest : largest + 1] = runs[largest][:half], runs[largest][half:]
    return runs


def cheapest(
    sizes: Sequence[Sequence[int]], row_length: int, at_least: int = 1
) -> list[range]:
    """Cut items as :func:`balanced` does, into so many rows, ``at_least`` or more, that they cost
    least.

    What counts are the slots of rows trimmed to the fullest one, and attention, which is to all
    slots of a row: more rows share less, and two rows of 100 slots take half the attention of one
    of 200.
    """

    def cost(rows: list[range]) -> int:
        return _cost(len(rows), fullest(sizes, rows))

    best = rows = balanced(
        sizes, row_length, max(len(fill(sizes, row_length)), at_least)
    )
    longest = max((sizes[i][i] for i in range(len(sizes))), default=0)
    # Each row is at least as long as the longest item, so more rows may be out of question.
    while _cost(more := round_up(len(rows) + 1), longest) < cost(best):
        rows = balanced(sizes, row_length, more)
        best = min(best, rows, key=cost)
    return best


def _cost(num_rows: int, length: int) -> int:
    return num_rows * length * (_ATTENTION + length)


def fullest(sizes: Sequence[Sequence[int]], rows: Sequence[range]) -> int:
    """Nodes of the fullest row."""
    return max((sizes[row[0]][row[-1]] for row in rows if row), default=0)


def round_up(size: int) -> int:
    """``size`` rounded up to one of few: 1 to 8, then 10, 12, 14, 16, 20, 24, 28, 32, 40 ...

    At most a quarter larger. A compiled kernel is built anew for each size it meets.
    """
    step = 1 << max(size.bit_length() - 3, 0)
    return -(-size // step) * step


def few_lengths(length: int, row_length: int, block: int) -> int:
    """``row_length``, halved as long as it holds ``length`` and stays a multiple of ``block``."""
    while row_length % (2 * block) == 0 and row_length // 2 >= length:
        row_length //= 2
    return row_length
