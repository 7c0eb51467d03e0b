"""A synchronous grammar that generates descriptions together with regular expressions.

As in NL-RX-SYNTH (Locascio et al. 2016, "Neural Generation of Regular Expressions from Natural
Language with Minimal Domain Knowledge"), each production has a regex and several wordings, so one
derivation gives both sides of a pair:

    line    lines with BODY            .*BODY.*
            lines starting with BODY   BODY.*
            lines ending with BODY     .*BODY
            lines without BODY         ~(.*BODY.*)
            words with BODY            \\bBODY\\b
    body    PHRASE | UNIT before PHRASE | PHRASE before UNIT         (A.*B)
    phrase  UNIT | UNIT or UNIT | UNIT and UNIT | UNIT N or more times
                                       (A|B)     (A&B)     (A){N,}
    unit    a character class, or a quoted word

Every composition has brackets and the nesting above fixes the precedence, so a description is
unambiguous. `&` (intersection) and `~` (complement) are operators of NL-RX; `re` compiles any
regex without them.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

SYSTEM_PROMPT = "Convert natural language to regular expression."

# One of TEST_SHARE regexes belongs to the test split.
TEST_SHARE = 8

CLASSES = {
    "[0-9]": ("a number", "a digit"),
    "[A-Za-z]": ("a letter",),
    "[A-Z]": ("a capital letter", "an upper-case letter"),
    "[a-z]": ("a lower-case letter",),
    "[AEIOUaeiou]": ("a vowel",),
    ".": ("a character",),
}
WORDS = ("dog", "lake", "moon", "ring", "tree", "truck")
COUNTS = (2, 3, 4, 5)
# Construct -> a text that occurs in exactly the regexes derived with it.
CONSTRUCTS = {"and": "&", "or": "|", "not": "~", "count": "{", "word": r"\b"}


@dataclass(frozen=True)
class Node:
    """A derivation: its regex, and templates of its description."""

    regex: str
    wordings: tuple[str, ...]
    parts: tuple["Node", ...] = ()

    def describe(self, rng: random.Random) -> str:
        """Return a description of the derivation, choosing wordings with ``rng``."""
        wording = rng.choice(self.wordings)
        return wording.format(*(part.describe(rng) for part in self.parts))


def _units() -> list[Node]:
    classes = [Node(regex, wordings) for regex, wordings in CLASSES.items()]
    words = [Node(w, (f"'{w}'", f"the word '{w}'")) for w in WORDS]
    return classes + words


def _phrases(units: list[Node]) -> Iterator[Node]:
    yield from units
    for a, b in permutations(units, 2):
        yield Node(f"({a.regex}|{b.regex})", ("{} or {}", "either {} or {}"), (a, b))
        yield Node(f"({a.regex}&{b.regex})", ("{} and {}", "both {} and {}"), (a, b))
    for a in units:
        for n in COUNTS:
            wordings = (f"{{}} {n} or more times", f"{{}} at least {n} times")
            yield Node(f"({a.regex}){{{n},}}", wordings, (a,))


def _bodies(units: list[Node], phrases: list[Node]) -> Iterator[Node]:
    yield from phrases
    # A pair of units is both (unit, phrase) and (phrase, unit): keep it once.
    pairs = [(unit, phrase) for unit in units for phrase in phrases]
    pairs += [(phrase, unit) for unit in units for phrase in phrases if phrase.parts]
    for a, b in pairs:
        wordings = ("{} before {}", "{} followed by {}")
        yield Node(f"({a.regex}.*{b.regex})", wordings, (a, b))


def _lines(bodies: list[Node]) -> Iterator[Node]:
    for body in bodies:
        regex, parts = body.regex, (body,)
        yield Node(f".*{regex}.*", ("lines with {}", "lines containing {}"), parts)
        yield Node(f"{regex}.*", ("lines starting with {}",), parts)
        yield Node(f".*{regex}", ("lines ending with {}",), parts)
        wordings = ("lines without {}", "lines not containing {}")
        yield Node(f"~(.*{regex}.*)", wordings, parts)
        yield Node(rf"\b{regex}\b", ("words with {}",), parts)


def split_of(regex: str) -> str:
    """Return the split of a regex, which does not depend on seed and size."""
    digest = hashlib.sha256(regex.encode()).digest()
    return "test" if digest[0] % TEST_SHARE == 0 else "train"


@cache
def _support(split: str) -> tuple[Node, ...]:
    units = _units()
    phrases = list(_phrases(units))
    lines = _lines(list(_bodies(units, phrases)))
    return tuple(line for line in lines if split_of(line.regex) == split)


def _shows(regex: str, constructs: Sequence[str]) -> bool:
    return any(CONSTRUCTS[name] in regex for name in constructs)


def generate_pairs(
    size: int,
    *,
    split: str,
    seed: int = 0,
    constructs: Sequence[str] | None = None,
    without: Sequence[str] = (),
) -> list[tuple[str, str]]:
    """Draw pairs of a description and a regex without replacement; none occurs twice.

    No regex occurs in both splits, for any seeds. Regexes have at least one of ``constructs``, if
    given, and none of ``without``.

    Raises:
        ValueError: if a construct is unknown, or if there are fewer pairs.
    """
    if unknown := sorted({*(constructs or ()), *without} - CONSTRUCTS.keys()):
        raise ValueError(
            f"Unknown construct {', '.join(unknown)}; the grammar has "
            f"{', '.join(CONSTRUCTS)}."
        )
    support = [
        line
        for line in _support(split)
        if (constructs is None or _shows(line.regex, constructs))
        and not _shows(line.regex, without)
    ]
    if not 0 <= size <= len(support):
        raise ValueError(
            f"Cannot draw {size} pairs: the {split} split of the grammar holds "
            f"at most {len(support)} of this kind."
        )
    rng = random.Random(f"{split}-{seed}")
    return [(node.describe(rng), node.regex) for node in rng.sample(support, size)]


def generate_records(size: int, **drawn: Any) -> list[dict[str, Any]]:
    """Return the pairs of :func:`generate_pairs` as chats, in the format of the NL-RX files."""
    return [
        {
            "messages": [
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": description},
                {"role": "assistant", "content": regex},
            ]
        }
        for description, regex in generate_pairs(size, **drawn)
    ]
