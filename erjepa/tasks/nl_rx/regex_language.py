r"""Do two regexes describe the same lines? Decided by their derivatives.

Brzozowski's derivative of R by the letter a (Derivatives of Regular Expressions, J. ACM
1964) describes what may follow a in the texts of R. Derivatives take & and ~ as they come,
and a regex has finitely many: they are the states of its automaton. Two regexes are equal
if, after every text, both of their derivatives have the empty text or neither has. Pairs
of states are visited one at a time, so that the bounds hold on the way.

The word boundary is exact. Whether ``\b`` holds between two letters depends on those
two alone, so a state is the pair (was the last letter a word character?, derivative) and
the next letter is known when a derivative is taken. Both ends of the line count as no
word character. A & B describes a stretch of the line that both describe there, ~A one
that A does not: ``\ba&a\b`` is the lone word a. The dataset's own tool reads ``\b`` as
the letter b instead.

The alphabet is Unicode without the newline. Letters that neither regex tells apart
count as one: the regexes of the dataset need 1 to 15, half of them no more than 5.

Regexes beyond the bounds stay undecided.
"""

import itertools
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

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
from erjepa.tasks.nl_rx.regex_syntax import WORD, RegexSyntaxError, parse

__all__ = ["RegexSyntaxError", "languages_equal"]


def languages_equal(a: str, b: str, *, max_states: int, seconds: float) -> bool | None:
    """Whether two regexes describe the same lines; ``None``: a bound was reached before.

    Args:
        max_states: most pairs of states to visit.

    Raises:
        RegexSyntaxError: one of the texts is not a regex.
    """
    deadline = time.monotonic() + seconds
    try:
        trees = parse(a, deadline), parse(b, deadline)
        derivatives = _Derivatives(_alphabet(trees, deadline), deadline)
        return _equivalent(trees, derivatives, max_states)
    except (TimeoutError, RecursionError):  # trees may be deeper than Python's stack
        return None


def _equivalent(
    trees: tuple[Node, Node], derivatives: "_Derivatives", max_states: int
) -> bool | None:
    start = (False, *trees)
    known, queue = {start}, deque([start])
    while queue:
        before, left, right = queue.popleft()
        if _has_empty(left, before, False) != _has_empty(right, before, False):
            return False
        for symbol, is_word in derivatives.symbols.items():
            pair = (
                is_word,
                derivatives.of(left, before, symbol),
                derivatives.of(right, before, symbol),
            )
            if pair not in known:
                if len(known) >= max_states:
                    return None
                known.add(pair)
                queue.append(pair)
    return True


def _alphabet(trees: tuple[Node, ...], deadline: float) -> dict[str, bool]:
    r"""One letter of each kind, and whether it is a word character.

    Without ``\b`` none counts as one, which saves telling them apart.
    """
    nodes = set()
    for node in itertools.chain(*map(_walk, trees)):
        _require_time(deadline)
        nodes.add(node)
    bounded = Boundary() in nodes
    sets = [node for node in nodes if isinstance(node, Letters)]
    sets += [ANY_LETTER, WORD] if bounded else [ANY_LETTER]
    # Sets can only tell letters apart where one of their ranges begins or has ended.
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


@dataclass
class _Derivatives:
    """Derivatives over one alphabet, each taken once."""

    symbols: dict[str, bool]
    deadline: float
    known: dict[tuple[Node, bool, str], Node] = field(default_factory=dict)

    def of(self, node: Node, before: bool, symbol: str) -> Node:
        """What may follow ``symbol`` in texts of ``node``, after a word character or not."""
        key = node, before, symbol
        if key not in self.known:
            _require_time(self.deadline)
            self.known[key] = self._derivative(*key)
        return self.known[key]

    def _derivative(self, node: Node, before: bool, symbol: str) -> Node:
        after = self.symbols[symbol]

        def of(inner: Node) -> Node:
            return self.of(inner, before, symbol)

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
                # Rounds before the first that reads a letter are empty, where they can
                # be; there may have been any number of them.
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


def _has_empty(node: Node, before: bool, after: bool) -> bool:
    """Whether ``node`` has the empty text, given whether its neighbours are word
    characters.
    """
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
