"""Prefix trees equal nested dictionaries, node by node."""

import numpy as np
import pytest

from erjepa.packing import prefix_tree, tree_size
from tests.harness.models import arrays, random_paths
from tests.reference.slow_tree import slow_tree


def test_the_tree_of_the_docstring():
    a, b, c, d, e, f, g, h = range(8)
    paths = arrays([a, b, c, d], [a, b, e], [a, b, e, f], [g, h])
    tree = prefix_tree(paths)
    assert tree.tokens.tolist() == [a, b, c, d, e, f, g, h]
    assert tree.depth.tolist() == [0, 1, 2, 3, 2, 3, 0, 1]
    assert tree.end.tolist() == [6, 6, 4, 4, 6, 6, 8, 8]
    assert [nodes.tolist() for nodes in tree.paths] == [
        [0, 1, 2, 3],
        [0, 1, 4],
        [0, 1, 4, 5],
        [6, 7],
    ]


@pytest.mark.parametrize("seed", range(40))
def test_nodes_ends_and_paths_are_those_of_nested_dictionaries(seed):
    paths = random_paths(seed)
    tree, nodes = prefix_tree(paths), slow_tree(paths)
    assert tree.tokens.tolist() == [node[-1] for node in nodes]
    assert tree.depth.tolist() == [len(node) - 1 for node in nodes]
    assert tree_size(paths) == len(nodes)
    for node, end in zip(nodes, tree.end, strict=True):
        descendants = [i for i, n in enumerate(nodes) if n[: len(node)] == node]
        assert descendants == list(range(descendants[0], end))
    for path, mine in zip(paths, tree.paths, strict=True):
        prefixes = [tuple(path[: i + 1]) for i in range(len(path))]
        assert [nodes[node] for node in mine] == prefixes


def test_the_order_of_paths_changes_only_theirs():
    paths = random_paths(3)
    tree, backwards = prefix_tree(paths), prefix_tree(paths[::-1])
    for name in ("tokens", "depth", "end"):
        assert np.array_equal(getattr(tree, name), getattr(backwards, name))
    for mine, other in zip(tree.paths, backwards.paths[::-1], strict=True):
        assert np.array_equal(mine, other)


def test_no_paths_make_no_nodes():
    tree = prefix_tree([])
    assert len(tree.tokens) == len(tree.depth) == len(tree.end) == tree_size([]) == 0
