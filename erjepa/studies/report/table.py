"""Tables: a frame in the units that are shown, and how each format writes it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from math import copysign
from numbers import Integral, Real
from typing import Any

import pandas as pd

from erjepa.utils.escape import csv_cell, latex, markdown

ABSENT, SD = "—", " sd"
# Parts of a text, and what is the matter with each.
Marked = list[tuple[str, str]]
SAME, WRONG, EXTRA, MISSING = "same", "wrong", "extra", "missing"


@dataclass(frozen=True)
class Format:
    """How cells are written, and what surrounds texts of each kind, and a whole marked text."""

    escape: Callable[[str], str]  # so that nothing is read as markup
    wrong: str
    extra: str
    missing: str
    best: str = "{}"
    code: str = "{}"  # around a whole marked text
    same: str = "{}"

    def write(self, text: str, kind: str = SAME) -> str:
        """A text of a kind."""
        return getattr(self, kind).format(self.escape(text))


@dataclass(frozen=True)
class Table:
    """A table. A column ``X sd`` of its frame has the standard deviations of ``X``."""

    caption: str  # what it shows, over what
    # Texts, numbers, marked texts; None or NaN where there is no value
    frame: pd.DataFrame
    # After the point, where they are not two
    digits: Mapping[str, int] = field(default_factory=dict)
    # Columns whose greatest number stands out, unless all are equal
    best: Collection[str] = ()
    name: str = ""  # what sets it apart within its section

    @property
    def columns(self) -> list[str]:
        """Names of columns as they are shown, each with its deviations."""
        is_sd = {name + SD for name in self.frame}
        return [name for name in self.frame if name not in is_sd]

    @property
    def kinds(self) -> list[str]:
        """Of each column whether it is shown as ``number`` or ``text``."""
        numeric = [any(map(_is_number, self.frame[name])) for name in self.columns]
        return ["number" if one else "text" for one in numeric]

    def rows(self, form: Format) -> list[list[str]]:
        """All cells as texts of a format, row by row."""
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
    """Means and sample standard deviations over rows of a group, in order of appearance.

    Args:
        columns: heading to values.
        by: heading to what names the group of each value; a text: a level of their index.

    Returns:
        A row a group; headings of ``by``, and of each column ``X`` and ``X sd``.
    """
    found = {}
    for heading, values in columns.items():
        groups = values.groupby(list(by.values()), sort=False)
        found[heading], found[heading + SD] = groups.mean(), groups.std()
    return pd.DataFrame(found).rename_axis(list(by)).reset_index()


def to_markdown(table: Table) -> str:
    """A table of GitHub's Markdown under its caption."""
    rule = [{"number": "---:", "text": ":---"}[kind] for kind in table.kinds]
    lines = [list(map(markdown, table.columns)), rule, *table.rows(MARKDOWN)]
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{markdown(table.caption)}\n\n{body}"


def to_csv(table: Table) -> str:
    """Numbers in full; standard deviations in columns of their own."""

    def full(cell: Any) -> Any:
        if isinstance(cell, list):
            cell = "".join(CSV.write(*part) for part in cell)
        return csv_cell(cell)

    frame = table.frame.astype(object).map(full).infer_objects()
    frame = frame.rename(columns=csv_cell)
    return frame.to_csv(index=False, float_format="%.12g", lineterminator="\n")


def to_latex(table: Table) -> str:
    """A floating table of LaTeX with the rules of booktabs."""
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
    # A half goes up, whatever its last bit: 54.595 is 54.60.
    text = f"{cell + copysign(1e-10, cell):.{digits}f}"
    if not float(text):
        # A small p-value is no zero; a mean that its spread dwarfs is.
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
