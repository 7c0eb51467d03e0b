"""How a predicted regex is wrong."""

from erjepa.analysis.regex_tokens import regex_tokens
from erjepa.tasks.nl_rx.regex_syntax import RegexSyntaxError, parse

CORRECT = "correct"
SYNTAX_ERROR = "syntax error"
LENGTH_CATEGORIES = ("over-generation", "under-generation", "same-length mismatch")
ERROR_CATEGORIES = (*LENGTH_CATEGORIES, SYNTAX_ERROR)


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
    surplus = len(regex_tokens(output)) - len(regex_tokens(target))
    if surplus:
        return LENGTH_CATEGORIES[0 if surplus > 0 else 1]
    return LENGTH_CATEGORIES[2]


def is_right_beginning(target: str, output: str) -> bool:
    """Whether an output begins with the whole target and runs on: all but its end is right."""
    target, output = target.strip(), output.strip()
    return output != target and output.startswith(target)
