r"""Splits regexes of NL-RX into tokens, and classifies targets and predictions by them.

A token is a unit in the grammar of ``erjepa.tasks.nl_rx.regex_syntax``:

    \b \.          an escape
    [a-z]          a character class
    {2,5}          a brace quantifier
    dog "a.b"      a literal word: a run of letters and digits, or a quoted text
    ( ) . * ~      any other character

For example ``.*(dog){2,}`` has six tokens: ``.``, ``*``, ``(``, ``dog``, ``)``, ``{2,}``. Any text
can be split, and its tokens joined are the text; unbalanced and unclosed constructs are split
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
# Structure -> its tokens or kinds of tokens.
_TOKENS = {
    "complement": ("~",),
    "intersection": ("&",),
    "alternation": ("|",),
    "quantifier": ("*", "+", "?", "{}"),
    "boundary / anchor": (r"\b", r"\B", "^", "$"),
    "character class": ("[]",),
}
STRUCTURES = tuple(_TOKENS)
# The paper's groups by length: maximum of regex tokens (the last has none), and names.
LENGTH_LIMITS = (10, 15, 20)
LENGTH_GROUPS = ("≤10", "11–15", "16–20", ">20")
CORRECT = "correct"
SYNTAX_ERROR = "syntax error"
LENGTH_CATEGORIES = ("over-generation", "under-generation", "same-length mismatch")
ERROR_CATEGORIES = (*LENGTH_CATEGORIES, SYNTAX_ERROR)


def regex_tokens(regex: str) -> list[str]:
    """Split a regex, or any other text, into tokens; joined they are the text."""
    return [token[0] for token in _TOKEN.finditer(regex)]


def structures(regex: str) -> set[str]:
    """Return the members of ``STRUCTURES`` that occur in a regex.

    Symbols that are escaped, quoted or in a character class are not operators.
    """
    kinds = {"set": "[]", "braces": "{}"}
    present = {kinds.get(x.lastgroup or "", x[0]) for x in _TOKEN.finditer(regex)}
    return {name for name, tokens in _TOKENS.items() if not present.isdisjoint(tokens)}


def length_group(regex: str) -> str:
    """Return the member of ``LENGTH_GROUPS`` to which a regex belongs."""
    return LENGTH_GROUPS[bisect_left(LENGTH_LIMITS, len(regex_tokens(regex)))]


def prediction_category(target: str, output: str) -> str:
    """Return ``CORRECT`` or one of ``ERROR_CATEGORIES``.

    An output is correct if it is the target, apart from surrounding white space. An output that
    does not parse is a syntax error; other errors are classified by their number of regex tokens
    compared with the target's.
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
    """Return whether an output starts with the whole target and continues."""
    target, output = target.strip(), output.strip()
    return output != target and output.startswith(target)
