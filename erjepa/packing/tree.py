"""Prefix trees of paths: a common prefix of several paths is stored once.

Nodes are tokens, numbered depth-first::

    paths         a b c d     a b e     a b e f     g h

    tree          a --- b --- c --- d
                        '---- e --- f
                  g --- h

    node          0   1   2   3   4   5   6   7
    token         a   b   c   d   e   f   g   h
    depth         0   1   2   3   2   3   0   1     the token's position
    end           6   6   4   4   6   6   8   8     one past its last descendant

A token sees itself and its ancestors, which are the earlier nodes that have not ended yet:
``key <= query < end[key]``.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class PrefixTree(NamedTuple):
    """A prefix tree of N nodes."""

    tokens: np.ndarray  # of each node, int32 [N]
    depth: np.ndarray  # number of its ancestors, int64 [N]
    end: np.ndarray  # one past its last descendant, int64 [N]
    paths: list[np.ndarray]  # the nodes of each path, in the order of its tokens


def prefix_tree(paths: Sequence[array]) -> PrefixTree:
    """Merge ``paths``, arrays of type ``i``, into one tree.

    Children are sorted by their tokens, so the tree does not depend on the order of the paths.
    """
    # Nodes of the current path, from the root.
    line = np.zeros(max(map(len, paths), default=0), np.int64)
    end = np.zeros(sum(map(len, paths)), np.int64)
    tokens, before = array("i"), array("i")
    depths: list[int] = []
    nodes = [line] * len(paths)
    for index in sorted(range(len(paths)), key=paths.__getitem__):
        path = paths[index]
        shared, size = _shared(before, path), len(tokens)
        end[line[shared : len(before)]] = size
        line[shared : len(path)] = np.arange(size, size + len(path) - shared)
        nodes[index] = line[: len(path)].copy()
        tokens.extend(path[shared:])
        depths.extend(range(shared, len(path)))
        before = path
    end[line[: len(before)]] = len(tokens)
    return PrefixTree(
        np.array(tokens, np.int32),
        np.array(depths, np.int64),
        end[: len(tokens)],
        nodes,
    )


def tree_size(paths: Sequence[array]) -> int:
    """Return the number of nodes in the tree of ``paths``."""
    size, before = 0, array("i")
    for path in sorted(paths):
        size += len(path) - _shared(before, path)
        before = path
    return size


def _shared(one: array, other: array) -> int:
    """Return the length of the common prefix."""
    limit = min(len(one), len(other))
    return bisect_left(range(1, limit + 1), True, key=lambda n: one[:n] != other[:n])
