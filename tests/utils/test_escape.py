"""Escaping of hostile texts for the programs that read them."""

import csv
import io

import pytest

from erjepa.utils.escape import (
    backticks,
    csv_cell,
    latex,
    markdown,
    markdown_code,
    one_line,
    printable,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n\u00e9\U0001f600", "a\tb\n\u00e9\U0001f600"),
        ("\x1b[31m\x07\x00\x7f", "?[31m???"),
        ("a\rb\x9b2J", "a?b?2J"),
        ("\u202eevil\u202c \u2066x\u2069", "?evil? ?x?"),  # right to left
        ("a\u2028b\ud83d", "a?b?"),
        (0.5, 0.5),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown


def test_one_line():
    assert one_line(" a\n\n\tb\x1b\x85c ") == "a b? c"
    assert one_line("a" * 9, 9) == "a" * 9 and one_line("a" * 10, 9) == "aaaaaa..."


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        *((f, f"'{f}") for f in ("=1", "+1", "-1", "@SUM(A1)", "\t=1", "\nx", " =1")),
        *((f"=cmd|' /C calc'!A0{end}", f"'=cmd|' /C calc'!A0{end}") for end in ("", ",")),
        ("\r=1", "?=1"),
        *((text, text) for text in ("1-1", "a=b", "", "-0.5 to 1", "-3.20 to -0.08")),
        ("-1 to =1", "'-1 to =1"),
        *((number, number) for number in (-0.5, -3, None)),
    ],
)  # fmt: skip
def test_csv_cell(value, cell):
    assert csv_cell(value) == cell
    row = io.StringIO()
    csv.writer(row).writerow([csv_cell(value)])
    assert next(csv.reader(io.StringIO(row.getvalue()))) == [
        "" if cell is None else str(cell)
    ]


@pytest.mark.parametrize(
    ("text", "plain", "code"),
    [
        ("a_b", r"a\_b", "`a_b`"),
        ("a|b", r"a\|b", r"`a\|b`"),
        ("a\nb\r| c", r"a b?\| c", r"`a b?\| c`"),
        ("`x``", r"\`x\`\`", "``` `x`` ```"),
        ("<b>&", "&lt;b&gt;&amp;", "`<b>&`"),
        ("[x](y)", r"\[x\](y)", "`[x](y)`"),
    ],
)
def test_markdown(text, plain, code):
    assert (markdown(text), markdown_code(text)) == (plain, code)


def test_a_fence_is_longer_than_any_within():
    assert backticks("a `b`") == "```" and backticks("\n````\n") == "`````"


def test_latex():
    assert latex("\\input{x}\n%") == r"\textbackslash{}input\{x\} \%"
