"""Texts of data and configs, written for whoever reads them next, a program or a person.

YAML, HTML and shell commands are escaped by ``yaml.safe_dump``, ``html.escape`` and ``shlex``.
"""

import re
from html import escape
from typing import Any

# Control characters, controls of the direction of text, and halves of surrogate pairs.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_FORMULA = re.compile(r"[\t\r\n]|\s*[=+@-]")
_INTERVAL = re.compile(r"[-\d.]+ to [-\d.]+")


def printable(text: Any) -> Any:
    """A text for a terminal or a page: ``?`` for each character that would control it.

    Line feeds and tabs stay. What is not a text stays as it is.
    """
    return _UNPRINTABLE.sub("?", text) if isinstance(text, str) else text


def one_line(text: str, width: int | None = None) -> str:
    """A printable text in one line, cut to ``width`` characters."""
    text = printable(" ".join(text.split()))
    if width is None or len(text) <= width:
        return text
    return f"{text[: width - 3]}..."


def counted(number: int, noun: str) -> str:
    """A number of things in words: ``1 pair``, ``12,000 pairs``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file: ``'`` before a text that a spreadsheet would compute.

    An interval such as ``-0.5 to 1`` is not a formula. Numbers stay numbers.
    """
    value = printable(value)
    is_formula = isinstance(value, str) and _FORMULA.match(value)
    return f"'{value}" if is_formula and not _INTERVAL.fullmatch(value) else value


def markdown(text: str) -> str:
    """A text within a line, or a cell of a table, of GitHub's Markdown."""
    text = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", printable(text))
    return escape(text, quote=False).replace("\n", " ")


def markdown_code(text: str) -> str:
    """A text as code in a cell of a table of GitHub's Markdown."""
    ticks = backticks(text, 1)
    edge = " " if len(ticks) > 1 else ""
    text = printable(text).replace("\n", " ").replace("|", r"\|")
    return f"{ticks}{edge}{text}{edge}{ticks}"


def backticks(text: str, least: int = 3) -> str:
    """A fence around code in Markdown that no line of the code closes."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def latex(text: str) -> str:
    """A text in LaTeX."""
    return text.translate(_LATEX)


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{"[": "{[}", "\n": " "},  # a bracket would be an argument of a row's end
        **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"|": r"\textbar{}", '"': r"\textquotedbl{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}"},
        **{"≤": r"$\le$", "±": r"$\pm$", "×": r"$\times$", "–": "--", "—": "---"},
        **{"β": r"$\beta$", "η": r"$\eta$", "κ": r"$\kappa$", "λ": r"$\lambda$"},
        "…": r"\dots{}",
    }
)
