"""Regexes as trees in a normal form, which is established by the functions that build them.

The normal form keeps the number of derivatives finite and small: a union is a set, a sequence is
flat, and a sequence that begins with a union is a union of sequences. Letters are sets of code
points; the alphabet lacks the newline, as lines do.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# Inclusive ranges of code points: sorted, disjoint and not adjacent.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Letters:
    """One character out of a set: ``a``, ``.``, ``[a-z]``, ``[^0-9]``."""

    ranges: Ranges

    def __contains__(self, code_point: int) -> bool:
        return any(low <= code_point <= high for low, high in self.ranges)


@dataclass(frozen=True)
class Boundary:
    r"""``\b``: the empty string between a word character and a non-word character."""


@dataclass(frozen=True)
class Sequence:
    """Concatenation; without parts the empty string."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Union:
    """``a|b``; without options it matches nothing."""

    options: "frozenset[Node]"


@dataclass(frozen=True)
class Intersection:
    """``a&b``."""

    options: "frozenset[Node]"


@dataclass(frozen=True)
class Complement:
    """``~(a)``."""

    inner: "Node"


@dataclass(frozen=True)
class Repeat:
    """``a*``, ``a+``, ``a?``, ``a{2}``, ``a{2,}``, ``a{2,5}``; without a limit ``most`` is None."""

    inner: "Node"
    least: int
    most: int | None


Node = Letters | Boundary | Sequence | Union | Intersection | Complement | Repeat

EMPTY_TEXT = Sequence(())
NOTHING = Union(frozenset())
ANYTHING = Complement(NOTHING)
ANY_LETTER = Letters(((0x0, 0x9), (0xB, 0x10FFFF)))  # all except the newline


def any_of(ranges: Iterable[tuple[int, int]]) -> Node:
    """Return the node of one character in ``ranges``, which may overlap."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return Letters(tuple(merged)) if merged else NOTHING


def none_of(ranges: Iterable[tuple[int, int]]) -> Node:
    """Return the node of one character of the alphabet outside ``ranges``, which may overlap."""
    return any_of(_gaps(ranges))


def sequence(*parts: Node) -> Node:
    """Return the concatenation of ``parts``."""
    flat: list[Node] = []
    for part in parts:
        for one in _parts(part):
            if one != ANYTHING or flat[-1:] != [ANYTHING]:
                flat.append(one)
    if NOTHING in flat:
        return NOTHING
    if len(flat) == 1:
        return flat[0]
    if flat and isinstance(flat[0], Union):
        return union(*(sequence(option, *flat[1:]) for option in flat[0].options))
    return Sequence(tuple(flat))


def union(*options: Node) -> Node:
    """Return the node that matches what at least one of ``options`` matches."""
    letters, flat = _flattened(Union, options)
    if ANYTHING in flat:
        return ANYTHING
    if letters:
        flat.add(any_of(pair for one in letters for pair in one.ranges))
    flat = _without_contained(flat)
    return flat.pop() if len(flat) == 1 else Union(frozenset(flat))


def intersection(*options: Node) -> Node:
    """Return the node that matches what all of ``options`` match."""
    letters, flat = _flattened(Intersection, options)
    if letters:
        # The characters that are in no gap of any set.
        flat.add(none_of(gap for one in letters for gap in _gaps(one.ranges)))
    flat.discard(ANYTHING)
    if NOTHING in flat:
        return NOTHING
    if not flat:
        return ANYTHING
    return flat.pop() if len(flat) == 1 else Intersection(frozenset(flat))


def complement(inner: Node) -> Node:
    """Return the node that matches what ``inner`` does not match."""
    return inner.inner if isinstance(inner, Complement) else Complement(inner)


def repeat(inner: Node, least: int, most: int | None) -> Node:
    """Return the node of ``least`` to ``most`` repetitions of ``inner``."""
    if (least, most) == (1, 1):
        return inner
    if most == 0 or inner == EMPTY_TEXT or (inner == NOTHING and least == 0):
        return EMPTY_TEXT
    if inner == NOTHING:
        return NOTHING
    if (least, most) == (0, None) and inner in (ANY_LETTER, ANYTHING):
        return ANYTHING
    return Repeat(inner, least, most)


def _parts(node: Node) -> tuple[Node, ...]:
    return node.parts if isinstance(node, Sequence) else (node,)


def _without_contained(options: set[Node]) -> set[Node]:
    """Return ``options`` without each ``AR`` for which ``.*R`` is an option too.

    ``.*R`` matches whatever ``AR`` matches. Regexes that search for several things in a row have
    many such options; without them they have fewer states.
    """
    ends = [_parts(one)[1:] for one in options if _parts(one)[:1] == (ANYTHING,)]
    return {
        one
        for one in options
        if not any(
            _parts(one)[-len(end) :] == end and _parts(one) != (ANYTHING, *end)
            for end in ends
        )
    }


def _flattened(
    kind: type[Union] | type[Intersection], options: Iterable[Node]
) -> tuple[list[Letters], set[Node]]:
    """Flatten options that are of ``kind`` themselves; return the letters and all others."""
    letters: list[Letters] = []
    others: set[Node] = set()
    for option in options:
        for one in option.options if isinstance(option, kind) else (option,):
            if isinstance(one, Letters):
                letters.append(one)
            else:
                others.add(one)
    return letters, others


def _gaps(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges of the alphabet between ``ranges``, which may overlap."""
    gaps, start = [], 0
    for low, high in sorted([*ranges, (0xA, 0xA), (0x110000, 0x110000)]):
        if start < low:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return tuple(gaps)
