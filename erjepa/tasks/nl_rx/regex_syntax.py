r"""Parser of the regex language of NL-RX.

It has the operators of dk.brics.automaton, the library that scores the dataset, but for its ``@``,
``#`` and ``<n-m>``, which are literal here. From the lowest to the highest precedence:

    a|b            union
    a&b            intersection
    ab             concatenation
    a* a+ a?       repetition, also a{2}, a{2,} and a{2,5}
    ~a             complement: ~(a)* is (~(a))*
    (a)  ()        group; the empty string
    [a-z] [^a-z]   one character in, or not in, a set
    .              any character
    "dog*"         these characters literally
    \. \b \d \w \s literal character; word boundary; the usual sets (\D \W \S: all others)

A regex matches a whole line, so ``^`` and ``$`` are literal characters and a newline is an error.

The parser keeps open groups in a list, so a thousand ``(`` are a syntax error and do not overflow
Python's stack.
"""

import math
import re
import time
from dataclasses import dataclass, field

from erjepa.tasks.nl_rx.regex_nodes import (
    ANY_LETTER,
    EMPTY_TEXT,
    Boundary,
    Letters,
    Node,
    any_of,
    complement,
    intersection,
    none_of,
    repeat,
    sequence,
    union,
)

_SETS = {
    "d": [(0x30, 0x39)],
    "w": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    "s": [(0x9, 0x9), (0xB, 0xD), (0x20, 0x20)],
}
WORD = Letters(tuple(_SETS["w"]))
_LIMITS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNT = re.compile(r"\{([0-9]{1,9})(,)?([0-9]{1,9})?\}", re.ASCII)


class RegexSyntaxError(ValueError):
    """Raised if a text is not a regex of the language."""


@dataclass
class _Group:
    options: list[Node] = field(default_factory=list)
    conjuncts: list[Node] = field(default_factory=list)
    parts: list[Node] = field(default_factory=list)
    complements: int = 0

    def append(self, atom: Node) -> None:
        for _ in range(self.complements):
            atom = complement(atom)
        self.complements = 0
        self.parts.append(atom)

    def end_conjunct(self) -> None:
        if self.complements or not self.parts:
            raise RegexSyntaxError("an operator without its operand")
        self.conjuncts.append(sequence(*self.parts))
        self.parts = []

    def end_option(self) -> None:
        self.end_conjunct()
        self.options.append(intersection(*self.conjuncts))
        self.conjuncts = []

    def close(self) -> Node:
        self.end_option()
        return union(*self.options)


def parse(text: str, deadline: float = math.inf) -> Node:
    """Return the tree of a regex.

    Raises:
        RegexSyntaxError: if the text is empty, unbalanced or ill-formed.
        TimeoutError: if ``time.monotonic()`` has passed ``deadline``.
    """
    groups, at = [_Group()], 0
    while at < len(text):
        if time.monotonic() > deadline:
            raise TimeoutError
        letter, group = text[at], groups[-1]
        at += 1
        if letter == "(":
            if text.startswith(")", at):
                at += 1
                group.append(EMPTY_TEXT)
            else:
                groups.append(_Group())
        elif letter == ")":
            if len(groups) == 1:
                raise RegexSyntaxError("an unmatched )")
            groups.pop()
            groups[-1].append(group.close())
        elif letter == "|":
            group.end_option()
        elif letter == "&":
            group.end_conjunct()
        elif letter == "~":
            group.complements += 1
        elif letter in "*+?{":
            least, most, at = _limits(text, at - 1)
            if group.complements or not group.parts:
                raise RegexSyntaxError(f"nothing to repeat before {letter}")
            group.parts.append(repeat(group.parts.pop(), least, most))
        elif letter == '"':
            end = text.find('"', at)
            if end < 0:
                raise RegexSyntaxError('a " that is never closed')
            group.append(sequence(*(_letter(one) for one in text[at:end])))
            at = end + 1
        elif letter == "[":
            atom, at = _set(text, at)
            group.append(atom)
        elif letter == "\\":
            group.append(_escape(text[at : at + 1]))
            at += 1
        elif letter in "]}":
            raise RegexSyntaxError(f"an unmatched {letter}")
        else:
            group.append(ANY_LETTER if letter == "." else _letter(letter))
    if len(groups) > 1:
        raise RegexSyntaxError("a ( that is never closed")
    return groups[0].close()


def _letter(letter: str) -> Letters:
    if letter == "\n":
        raise RegexSyntaxError("a line has no newline")
    return Letters(((ord(letter), ord(letter)),))


def _limits(text: str, at: int) -> tuple[int, int | None, int]:
    """Return minimum, maximum and end of the quantifier at ``at``."""
    if text[at] in _LIMITS:
        return *_LIMITS[text[at]], at + 1
    count = _COUNT.match(text, at)
    if not count or (count[3] and not count[2]):
        raise RegexSyntaxError("a { without a count")
    least = int(count[1])
    most = int(count[3]) if count[3] else None if count[2] else least
    if most is not None and most < least:
        raise RegexSyntaxError(f"no count is in {count[0]}")
    return least, most, count.end()


def _escape(letter: str) -> Node:
    if letter == "b":
        return Boundary()
    if letter.lower() in _SETS:
        ranges = _SETS[letter.lower()]
        return any_of(ranges) if letter.islower() else none_of(ranges)
    if not letter or (letter.isascii() and letter.isalnum()):
        raise RegexSyntaxError(f"unknown escape \\{letter}")
    return _letter(letter)


def _set(text: str, at: int) -> tuple[Node, int]:
    """Return the set whose ``[`` is just before ``at``, and its end."""
    negated = text.startswith("^", at)
    at += negated
    ranges: list[tuple[int, int]] = []
    while at < len(text) and text[at] != "]":
        low, at = _member(text, at)
        if text.startswith("-", at) and text[at + 1 : at + 2] not in ("]", ""):
            high, at = _member(text, at + 1)
            if len(low) != 1 or len(high) != 1 or high[0][1] < low[0][0]:
                raise RegexSyntaxError("an empty range of letters")
            low = [(low[0][0], high[0][1])]
        ranges.extend(low)
    if at >= len(text):
        raise RegexSyntaxError("a [ that is never closed")
    if not ranges:
        raise RegexSyntaxError("a set without letters")
    return (none_of if negated else any_of)(ranges), at + 1


def _member(text: str, at: int) -> tuple[list[tuple[int, int]], int]:
    """Return the ranges of the character or escape at ``at`` in a set, and its end."""
    if text[at] != "\\":
        return list(_letter(text[at]).ranges), at + 1
    node = _escape(text[at + 1 : at + 2])
    if not isinstance(node, Letters):
        raise RegexSyntaxError("a word boundary within a set")
    return list(node.ranges), at + 2
