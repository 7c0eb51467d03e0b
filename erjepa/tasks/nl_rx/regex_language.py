r"""Decides with derivatives whether two regexes match the same lines.

Brzozowski's derivative of R by a character a (Derivatives of Regular Expressions, J. ACM 1964)
matches the strings that can follow a in the strings of R. It is defined for & and ~ too, and a
regex has finitely many derivatives: the states of its automaton. Two regexes are equal if, after
every string, either both of their derivatives match the empty string or neither does. Pairs of
states are visited one at a time, so the bounds on states and time apply during the search.

Word boundaries are exact. Whether ``\b`` holds between two characters depends only on these two,
so a state is the pair (was the last character a word character?, derivative), and the next
character is known when a derivative is taken. The ends of the line count as non-word characters.
A & B matches a substring of the line that both match in this context, ~A one that A does not
match: ``\ba&a\b`` is the single word a. The dataset's own tool reads ``\b`` as the letter b
instead.

The alphabet is Unicode without the newline. Characters that neither regex distinguishes count as
one: the regexes of the dataset need 1 to 15 characters, half of them at most 5.

Regexes that exceed the bounds are undecided.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache

from erjepa.tasks.nl_rx.regex_nodes import (
    ANY_LETTER,
    EMPTY_TEXT,
    NOTHING,
    Boundary,
    Complement,
    Intersection,
    Letters,
    Node,
    Repeat,
    Sequence,
    Union,
    complement,
    intersection,
    repeat,
    sequence,
    union,
)
from erjepa.tasks.nl_rx.regex_syntax import WORD, parse


def languages_equal(a: str, b: str, *, max_states: int, seconds: float) -> bool | None:
    """Return whether two regexes match the same lines, or ``None`` if a bound is exceeded.

    Args:
        max_states: maximum number of pairs of states to visit.

    Raises:
        RegexSyntaxError: if one of the texts is not a regex.
    """
    deadline = time.monotonic() + seconds
    try:
        trees = parse(a, deadline), parse(b, deadline)
        symbols = _alphabet(trees, deadline)
        derivative = _derivative_by(symbols, deadline)
        start = (False, *trees)
        known, queue = {start}, deque([start])
        while queue:
            before, left, right = queue.popleft()
            if _has_empty(left, before, False) != _has_empty(right, before, False):
                return False
            for symbol, is_word in symbols.items():
                pair = (
                    is_word,
                    derivative(left, before, symbol),
                    derivative(right, before, symbol),
                )
                if pair not in known:
                    if len(known) >= max_states:
                        return None
                    known.add(pair)
                    queue.append(pair)
        return True
    except (TimeoutError, RecursionError):  # trees can be deeper than Python's stack
        return None


def _alphabet(trees: tuple[Node, ...], deadline: float) -> dict[str, bool]:
    r"""Return one character of each distinguishable kind, and whether it is a word character.

    Without ``\b`` in the regexes all count as non-word characters, which gives fewer kinds.
    """
    nodes = set()
    for node in itertools.chain(*map(_walk, trees)):
        _require_time(deadline)
        nodes.add(node)
    bounded = Boundary() in nodes
    sets = [node for node in nodes if isinstance(node, Letters)]
    sets += [ANY_LETTER, WORD] if bounded else [ANY_LETTER]
    # The kind can change only at the start of a range or just after its end.
    cuts = {cut for one in sets for low, high in one.ranges for cut in (low, high + 1)}
    kinds: dict[tuple[bool, ...], int] = {}
    for cut in sorted(cuts):
        _require_time(deadline)
        if cut in ANY_LETTER:
            kinds[tuple(cut in one for one in sets)] = cut
    return {chr(cut): bounded and cut in WORD for cut in kinds.values()}


def _require_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError


def _walk(node: Node) -> Iterator[Node]:
    yield node
    match node:
        case Sequence(inner) | Union(inner) | Intersection(inner):
            for one in inner:
                yield from _walk(one)
        case Complement(one) | Repeat(one):
            yield from _walk(one)


def _derivative_by(
    symbols: dict[str, bool], deadline: float
) -> Callable[[Node, bool, str], Node]:
    """Return the function that computes derivatives by ``symbols``, each of them once."""

    @cache
    def derivative(node: Node, before: bool, symbol: str) -> Node:
        """Return the derivative by ``symbol``; ``before``: a word character precedes it."""
        _require_time(deadline)
        after = symbols[symbol]

        def of(inner: Node) -> Node:
            return derivative(inner, before, symbol)

        match node:
            case Letters():
                return EMPTY_TEXT if ord(symbol) in node else NOTHING
            case Boundary():
                return NOTHING
            case Union(options):
                return union(*map(of, options))
            case Intersection(options):
                return intersection(*map(of, options))
            case Complement(inner):
                return complement(of(inner))
            case Repeat(inner, least, most):
                # If the inner regex matches the empty string here, any number of repetitions
                # can be empty before the one that reads the symbol.
                least = 0 if _has_empty(inner, before, after) else max(least - 1, 0)
                most = None if most is None else most - 1
                return sequence(of(inner), repeat(inner, least, most))
            case Sequence(parts):
                ways: list[Node] = []
                for i, part in enumerate(parts):
                    ways.append(sequence(of(part), *parts[i + 1 :]))
                    if not _has_empty(part, before, after):
                        break
                return union(*ways)

    return derivative


def _has_empty(node: Node, before: bool, after: bool) -> bool:
    """Return whether ``node`` matches "", given which of its neighbors are word characters."""
    match node:
        case Letters():
            return False
        case Boundary():
            return before != after
        case Sequence(inner) | Intersection(inner):
            return all(_has_empty(one, before, after) for one in inner)
        case Union(inner):
            return any(_has_empty(one, before, after) for one in inner)
        case Complement(inner):
            return not _has_empty(inner, before, after)
        case Repeat(inner, least):
            return least == 0 or _has_empty(inner, before, after)
