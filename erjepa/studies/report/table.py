"""Tables of a report, and the formats that they are written in."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from math import copysign
from numbers import Integral, Real
from typing import Any

import pandas as pd

from erjepa.utils.escape import csv_cell, latex, markdown

ABSENT, SD = "—", " sd"
# The parts of a text, each with one of the kinds below.
Marked = list[tuple[str, str]]
SAME, WRONG, EXTRA, MISSING = "same", "wrong", "extra", "missing"


@dataclass(frozen=True)
class Format:
    """A format of tables: the escaping of texts, and a template for each kind of text."""

    escape: Callable[[str], str]  # escapes markup
    wrong: str
    extra: str
    missing: str
    best: str = "{}"
    code: str = "{}"  # template for a whole marked text
    same: str = "{}"

    def write(self, text: str, kind: str = SAME) -> str:
        """Return ``text``, escaped, in the template of ``kind``."""
        return getattr(self, kind).format(self.escape(text))


@dataclass(frozen=True)
class Table:
    """A table. A column ``X sd`` of its frame holds the standard deviations of ``X``."""

    caption: str
    # Cells are strings, numbers or marked texts; None or NaN: no value
    frame: pd.DataFrame
    # Column to number of decimals; default: 2
    digits: Mapping[str, int] = field(default_factory=dict)
    # Columns whose greatest number is highlighted, unless all are equal
    best: Collection[str] = ()
    name: str = ""  # distinguishes the tables of a section

    @property
    def columns(self) -> list[str]:
        """Names of the shown columns; standard deviations have no column of their own."""
        is_sd = {name + SD for name in self.frame}
        return [name for name in self.frame if name not in is_sd]

    @property
    def kinds(self) -> list[str]:
        """Kind of each shown column: ``number`` or ``text``."""
        numeric = [any(map(_is_number, self.frame[name])) for name in self.columns]
        return ["number" if one else "text" for one in numeric]

    def rows(self, form: Format) -> list[list[str]]:
        """Return all cells as strings in a format, row by row."""
        columns = [self._cells(name, form) for name in self.columns]
        return list(map(list, zip(*columns, strict=True)))

    def _cells(self, column: str, form: Format) -> Iterator[str]:
        cells = self.frame[column].tolist()
        sds = self.frame.get(column + SD, pd.Series([None] * len(cells)))
        numbers = set(filter(_is_number, cells))
        best = max(numbers) if column in self.best and len(numbers) > 1 else None
        for cell, sd in zip(cells, sds, strict=True):
            if isinstance(cell, list):
                yield form.code.format("".join(form.write(*part) for part in cell))
            else:
                kind = "best" if best is not None and cell == best else SAME
                yield form.write(_text(cell, sd, self.digits.get(column, 2)), kind)


def spread(
    columns: Mapping[str, pd.Series] | pd.DataFrame, by: Mapping[str, pd.Series | str]
) -> pd.DataFrame:
    """Compute the mean and sample standard deviation of each group, in order of appearance.

    Args:
        columns: maps a heading to values.
        by: maps a heading to the group of each value, or to the name of an index level.

    Returns:
        One row per group, with the columns of ``by``, and for each column ``X`` the columns ``X``
        and ``X sd``.
    """
    spreads = {}
    for heading, values in columns.items():
        groups = values.groupby(list(by.values()), sort=False)
        spreads[heading], spreads[heading + SD] = groups.mean(), groups.std()
    return pd.DataFrame(spreads).rename_axis(list(by)).reset_index()


def to_markdown(table: Table) -> str:
    """Return a table in GitHub's Markdown, below its caption."""
    rule = [{"number": "---:", "text": ":---"}[kind] for kind in table.kinds]
    lines = [list(map(markdown, table.columns)), rule, *table.rows(MARKDOWN)]
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{markdown(table.caption)}\n\n{body}"


def to_csv(table: Table) -> str:
    """Return a table as CSV, with unrounded numbers and separate columns of deviations."""

    def full(cell: Any) -> Any:
        if isinstance(cell, list):
            cell = "".join(CSV.write(*part) for part in cell)
        return csv_cell(cell)

    frame = table.frame.astype(object).map(full).infer_objects()
    frame = frame.rename(columns=csv_cell)
    return frame.to_csv(index=False, float_format="%.12g", lineterminator="\n")


def to_latex(table: Table) -> str:
    """Return a table as a LaTeX float with booktabs rules."""
    texts = pd.DataFrame(table.rows(LATEX), columns=map(latex, table.columns))
    has_marks = table.frame.map(lambda cell: isinstance(cell, list)).to_numpy().any()
    return (_LATEX_MARKS if has_marks else "") + texts.style.hide(axis=0).to_latex(
        caption=latex(table.caption),
        label=f"tab:{table.name}",
        position="t",
        position_float="centering",
        column_format="".join("lr"[kind == "number"] for kind in table.kinds),
        hrules=True,
    )


def _is_number(cell: Any) -> bool:
    return isinstance(cell, Real) and cell == cell


def _text(cell: Any, sd: float | None, digits: int) -> str:
    if isinstance(cell, str) or pd.isna(cell):
        return cell if isinstance(cell, str) else ABSENT
    if isinstance(cell, Integral):
        return str(cell)
    # Round halves away from zero despite their binary representation: 54.595 gives 54.60.
    text = f"{cell + copysign(1e-10, cell):.{digits}f}"
    if not float(text):
        # A small p-value keeps one digit; a mean with a standard deviation is shown as 0.
        text = f"{cell:.1g}" if pd.isna(sd) and cell else text.lstrip("-")
    return text if pd.isna(sd) else f"{text} ± {sd:.{digits}f}"


_LATEX_MARKS = r"""% marks; define these to have them in color
\providecommand{\wrong}[1]{\underline{#1}}
\providecommand{\extra}[1]{\fbox{#1}}
\providecommand{\miss}[1]{$\langle$#1$\rangle$}
"""
CSV = Format(str, "{{~{}~}}", "{{+{}+}}", "[-{}-]")
MARKDOWN = Format(markdown, "<u>{}</u>", "<ins>{}</ins>", "<del>{}</del>", "**{}**")
LATEX = Format(
    latex,
    *(r"\wrong{{{}}}", r"\extra{{{}}}", r"\miss{{{}}}", r"\textbf{{{}}}"),
    r"\texttt{{{}}}",
)
HTML = Format(
    escape,
    '<mark class="wrong">{}</mark>',
    '<mark class="extra">{}</mark>',
    '<mark class="missing">{}</mark>',
    "<strong>{}</strong>",
    "<code>{}</code>",
)
FORMATS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
