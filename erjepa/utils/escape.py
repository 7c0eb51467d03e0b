"""Escaping of texts for terminals, CSV, Markdown and LaTeX.

For YAML, HTML and shell commands use ``yaml.safe_dump``, ``html.escape`` and ``shlex``.
"""

import re
from html import escape
from typing import Any

# Control characters, line and direction controls of Unicode, and lone surrogates.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_FORMULA = re.compile(r"[\t\r\n]|\s*[=+@-]")
_INTERVAL = re.compile(r"[-\d.]+ to [-\d.]+")


def printable(text: Any) -> Any:
    """Replace each control character of a text by ``?``.

    Line feeds and tabs are kept. A value that is not a string is returned unchanged.
    """
    return _UNPRINTABLE.sub("?", text) if isinstance(text, str) else text


def one_line(text: str, width: int | None = None) -> str:
    """Return a text as one printable line, cut to ``width`` characters."""
    text = printable(" ".join(text.split()))
    if width is None or len(text) <= width:
        return text
    return f"{text[: width - 3]}..."


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 pair``, ``12,000 pairs``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def csv_cell(value: Any) -> Any:
    """Return a CSV cell, with ``'`` before a text that a spreadsheet would take for a formula.

    An interval such as ``-0.5 to 1`` is not a formula. Numbers stay numbers.
    """
    value = printable(value)
    is_formula = isinstance(value, str) and _FORMULA.match(value)
    return f"'{value}" if is_formula and not _INTERVAL.fullmatch(value) else value


def markdown(text: str) -> str:
    """Escape a text for one line, or one table cell, of GitHub's Markdown."""
    text = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", printable(text))
    return escape(text, quote=False).replace("\n", " ")


def markdown_code(text: str) -> str:
    """Format a text as inline code for a table cell of GitHub's Markdown."""
    ticks = backticks(text, 1)
    edge = " " if len(ticks) > 1 else ""
    text = printable(text).replace("\n", " ").replace("|", r"\|")
    return f"{ticks}{edge}{text}{edge}{ticks}"


def backticks(text: str, least: int = 3) -> str:
    """Return a Markdown fence longer than any run of backticks in ``text``."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def latex(text: str) -> str:
    return text.translate(_LATEX)


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{"[": "{[}", "\n": " "},  # after a row's end, [ would start its argument
        **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"|": r"\textbar{}", '"': r"\textquotedbl{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}"},
        **{"≤": r"$\le$", "±": r"$\pm$", "×": r"$\times$", "–": "--", "—": "---"},
        **{"β": r"$\beta$", "η": r"$\eta$", "κ": r"$\kappa$", "λ": r"$\lambda$"},
        "…": r"\dots{}",
    }
)
