r"""Regexes of NL-RX as tokens, what these say about a target, and how a prediction is wrong.

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
from bisect import bisect_left

from erjepa.tasks.nl_rx.regex_syntax import RegexSyntaxError, parse

_TOKEN = re.compile(
    r"""
      \\.
    | (?P<set> \[ (?!\^\]) (?: \\. | [^\]\\] )+ \] )
    | (?P<braces> \{ [0-9]+ (?: , [0-9]* )? \} )
    | "[^"]*"
    | [A-Za-z0-9]+
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
# Structure -> tokens, or kinds of tokens, that belong to it.
_TOKENS = {
    "complement": ("~",),
    "intersection": ("&",),
    "alternation": ("|",),
    "quantifier": ("*", "+", "?", "{}"),
    "boundary / anchor": (r"\b", r"\B", "^", "$"),
    "character class": ("[]",),
}
STRUCTURES = tuple(_TOKENS)
# Groups of the paper: most regex tokens of each but the last, and their names.
LENGTH_LIMITS = (10, 15, 20)
LENGTH_GROUPS = ("≤10", "11–15", "16–20", ">20")
CORRECT = "correct"
SYNTAX_ERROR = "syntax error"
LENGTH_CATEGORIES = ("over-generation", "under-generation", "same-length mismatch")
ERROR_CATEGORIES = (*LENGTH_CATEGORIES, SYNTAX_ERROR)


def regex_tokens(regex: str) -> list[str]:
    """The tokens of a regex, or of any other text; joined they are the text."""
    return [token[0] for token in _TOKEN.finditer(regex)]


def structures(regex: str) -> set[str]:
    """The structural subsets of ``STRUCTURES`` that a regex belongs to, any number of them.

    An escaped symbol, or one within a character class or quotes, is no operator.
    """
    kinds = {"set": "[]", "braces": "{}"}
    found = {kinds.get(x.lastgroup or "", x[0]) for x in _TOKEN.finditer(regex)}
    return {name for name, tokens in _TOKENS.items() if not found.isdisjoint(tokens)}


def length_group(regex: str) -> str:
    """The one of ``LENGTH_GROUPS`` that a regex belongs to."""
    return LENGTH_GROUPS[bisect_left(LENGTH_LIMITS, len(regex_tokens(regex)))]


def prediction_category(target: str, output: str) -> str:
    """``CORRECT`` or one of ``ERROR_CATEGORIES``.

    An output is correct when it is the target's text, white space around both aside. One that
    does not parse is a syntax error, whatever its length; all others go by their number of
    regex tokens against the target's.
    """
    target, output = target.strip(), output.strip()
    if output == target:
        return CORRECT
    try:
        parse(output)
    except (RegexSyntaxError, RecursionError):
        return SYNTAX_ERROR
    over, under, same = LENGTH_CATEGORIES
    surplus = len(regex_tokens(output)) - len(regex_tokens(target))
    return over if surplus > 0 else under if surplus < 0 else same


def is_right_beginning(target: str, output: str) -> bool:
    """Whether an output begins with the whole target and runs on: all but its end is right."""
    target, output = target.strip(), output.strip()
    return output != target and output.startswith(target)
