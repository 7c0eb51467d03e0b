"""Regexes as trees, kept in a normal form by the functions that build them.

The normal form is what keeps derivatives finite and few: a union is a set, a sequence is
flat, and a sequence that begins with a union is a union of sequences. Letters are sets
of code points; a line has no newline, so neither has the alphabet.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# Sorted, disjoint, non-adjacent; both ends included.
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Letters:
    """One letter out of a set: ``a``, ``.``, ``[a-z]``, ``[^0-9]``."""

    ranges: Ranges

    def __contains__(self, code_point: int) -> bool:
        return any(low <= code_point <= high for low, high in self.ranges)


@dataclass(frozen=True)
class Boundary:
    r"""``\b``: no letter, but a word character on exactly one side."""


@dataclass(frozen=True)
class Sequence:
    """Concatenation; without parts, the empty text."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Union:
    """``a|b``; without options, no text at all."""

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
    """``a*``, ``a+``, ``a?``, ``a{2}``, ``a{2,}``, ``a{2,5}``; ``most`` None: no limit."""

    inner: "Node"
    least: int
    most: int | None


Node = Letters | Boundary | Sequence | Union | Intersection | Complement | Repeat

EMPTY_TEXT = Sequence(())
NOTHING = Union(frozenset())
ANYTHING = Complement(NOTHING)
ANY_LETTER = Letters(((0x0, 0x9), (0xB, 0x10FFFF)))  # all but the newline


def any_of(ranges: Iterable[tuple[int, int]]) -> Node:
    """One letter of the alphabet out of ``ranges``, which may overlap."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    if tuple(merged) == ANY_LETTER.ranges:
        return ANY_LETTER
    return Letters(tuple(merged)) if merged else NOTHING


def none_of(ranges: list[tuple[int, int]]) -> Node:
    """One letter of the alphabet outside ``ranges``, which may overlap."""
    gaps, start = [], 0
    for low, high in sorted([*ranges, (0xA, 0xA)]):
        if start < low:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    if start <= 0x10FFFF:
        gaps.append((start, 0x10FFFF))
    return any_of(gaps)


def sequence(*parts: Node) -> Node:
    """Concatenation of ``parts``, in order."""
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
    """Texts of any of ``options``."""
    flat: set[Node] = set()
    ranges: list[tuple[int, int]] = []
    for option in options:
        for one in option.options if isinstance(option, Union) else (option,):
            if isinstance(one, Letters):
                ranges.extend(one.ranges)
            else:
                flat.add(one)
    if ANYTHING in flat:
        return ANYTHING
    if ranges:
        flat.add(any_of(ranges))
    flat = _without_contained(flat)
    return flat.pop() if len(flat) == 1 else Union(frozenset(flat))


def intersection(*options: Node) -> Node:
    """Texts of all of ``options``."""
    flat: set[Node] = set()
    letters: list[Letters] = []
    for option in options:
        for one in option.options if isinstance(option, Intersection) else (option,):
            if isinstance(one, Letters):
                letters.append(one)
            else:
                flat.add(one)
    if letters:
        flat.add(any_of(_shared(letters)))
    flat.discard(ANYTHING)
    if NOTHING in flat:
        return NOTHING
    if not flat:
        return ANYTHING
    return flat.pop() if len(flat) == 1 else Intersection(frozenset(flat))


def complement(inner: Node) -> Node:
    """Texts that ``inner`` has not."""
    return inner.inner if isinstance(inner, Complement) else Complement(inner)


def repeat(inner: Node, least: int, most: int | None) -> Node:
    """``least`` to ``most`` texts of ``inner``, one after the other."""
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
    """``options`` less those that end as another does which begins with anything.

    ``.*R`` has all texts of ``AR``. Regexes that look for one thing after another have
    many such options, and as many states fewer without them.
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


def _shared(letters: list[Letters]) -> Ranges:
    """What is in all of them."""
    shared = ANY_LETTER.ranges
    for one in letters:
        shared = tuple(
            (max(low, other_low), min(high, other_high))
            for low, high in shared
            for other_low, other_high in one.ranges
            if max(low, other_low) <= min(high, other_high)
        )
    return shared
