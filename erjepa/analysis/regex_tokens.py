r"""Regexes of NL-RX as tokens, and what their tokens say about them.

A token is what stands for one thing in the grammar of ``erjepa.tasks.nl_rx.regex_syntax``:

    \b \.          an escape
    [a-z]          a character class
    {2,5}          a brace quantifier
    dog "a.b"      a literal word: a run of letters and digits, or what is quoted
    ( ) . * ~      any other character

so ``.*(dog){2,}`` has six: ``.``, ``*``, ``(``, ``dog``, ``)``, ``{2,}``. Every text has
tokens, and they join to the text again: what is unbalanced or never closed falls apart
into characters.
"""

import re

_TOKEN = re.compile(
    r"""
      \\.
    | \[ (?!\^\]) (?: \\. | [^\]\\] )+ \]
    | \{ [0-9]+ (?: , [0-9]* )? \}
    | "[^"]*"
    | [A-Za-z0-9]+
    | .
    """,
    re.VERBOSE | re.DOTALL,
)

STRUCTURES = (
    "complement",
    "intersection",
    "alternation",
    "quantifier",
    "boundary / anchor",
    "character class",
)
_BY_TOKEN = {
    "~": "complement",
    "&": "intersection",
    "|": "alternation",
    **dict.fromkeys("*+?", "quantifier"),
    **dict.fromkeys((r"\b", r"\B", "^", "$"), "boundary / anchor"),
}
# Groups of the paper: most regex tokens of each but the last, and their names.
LENGTH_LIMITS = (10, 15, 20)
LENGTH_GROUPS = ("≤10", "11–15", "16–20", ">20")


def regex_tokens(regex: str) -> list[str]:
    """The tokens of a regex, or of a text that is none; joined they are the text."""
    return _TOKEN.findall(regex)


def structures(regex: str) -> set[str]:
    """The structural subsets of ``STRUCTURES`` that a regex belongs to, any number of them.

    An escaped symbol, or one within a character class or quotes, is no operator.
    """
    found = set()
    for token in regex_tokens(regex):
        if token in _BY_TOKEN:
            found.add(_BY_TOKEN[token])
        elif token[0] == "{" and len(token) > 1:
            found.add("quantifier")
        elif token[0] == "[" and len(token) > 1:
            found.add("character class")
    return found


def length_group(regex: str) -> str:
    """The one of ``LENGTH_GROUPS`` that a regex belongs to."""
    length = len(regex_tokens(regex))
    return LENGTH_GROUPS[sum(length > limit for limit in LENGTH_LIMITS)]
