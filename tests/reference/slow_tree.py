"""A slow prefix tree: nested dictionaries, traversed depth-first."""

from collections.abc import Iterable, Sequence


def slow_tree(paths: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """The nodes of the tree of ``paths``, depth-first, each as the tokens that lead to it."""
    root: dict = {}
    for path in paths:
        children = root
        for token in path:
            children = children.setdefault(token, {})
    nodes = []

    def walk(children, prefix):
        for token in sorted(children):
            nodes.append((*prefix, token))
            walk(children[token], nodes[-1])

    walk(root, ())
    return nodes


def sees(query: tuple[int, ...], key: tuple[int, ...]) -> bool:
    """Whether ``key`` is an ancestor of ``query``, or ``query`` itself."""
    return query[: len(key)] == key
