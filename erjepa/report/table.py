"""Tables: a frame in the units that are shown, and how Markdown, CSV and LaTeX write it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import copysign
from numbers import Integral, Real

import pandas as pd

from erjepa.analysis.examples import EXTRA, MISSING, SAME, WRONG

ABSENT, SD = "—", " sd"


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        caption (str): what it shows, over what.
        frame (pd.DataFrame): its cells: texts, numbers, marked texts; None or NaN where there
            is no value. A column ``X sd`` after ``X`` has the standard deviations of ``X``.
        digits (Mapping[str, int]): column to digits after the point, where they are not two.
        best (Collection[str]): columns whose greatest number stands out.
        name (str): what sets it apart within its section.
    """

    caption: str
    frame: pd.DataFrame
    digits: Mapping[str, int] = field(default_factory=dict)
    best: Collection[str] = ()
    name: str = ""

    @property
    def columns(self) -> list[str]:
        """Names of columns as they are shown, each with its deviations."""
        return [name for name in self.frame if not self._is_sd(name)]

    @property
    def kinds(self) -> list[str]:
        """Of each column whether it is shown as ``number`` or ``text``."""
        return ["number" if self.is_numeric(name) else "text" for name in self.columns]

    @property
    def html_rows(self) -> list[list[str]]:
        """All cells as HTML; marks are ``<mark class="wrong">`` and so on."""
        return self.rows(HTML)

    def is_numeric(self, column: str) -> bool:
        """Whether a column holds numbers."""
        return any(
            isinstance(cell, Real) and cell == cell for cell in self.frame[column]
        )

    def rows(self, style: "Style") -> list[list[str]]:
        """All cells as texts of a format, row by row."""
        return list(
            map(list, zip(*(self._texts(c, style) for c in self.columns), strict=True))
        )

    def _is_sd(self, name: str) -> bool:
        return name.endswith(SD) and name.removesuffix(SD) in self.frame

    def _texts(self, column: str, style: "Style") -> Iterable[str]:
        cells = self.frame[column].tolist()
        sds = self.frame.get(column + SD, pd.Series([None] * len(cells))).tolist()
        numbers = [cell for cell in cells if isinstance(cell, Real) and cell == cell]
        best = max(numbers, default=None) if column in self.best else None
        for cell, sd in zip(cells, sds, strict=True):
            text = style.text(cell, sd, self.digits.get(column, 2))
            yield style.bold.format(text) if best is not None and cell == best else text


@dataclass(frozen=True)
class Style:
    """How a format writes cells.

    Args:
        escape (Callable[[str], str]): a text, so that nothing in it is read as markup.
        marks (Sequence[str]): formats of parts that are wrong, extra and missing.
        bold (str): format of what stands out.
        plus_minus (str): what stands between a mean and its standard deviation.
        code (str): format of a whole text with marked parts.
    """

    escape: Callable[[str], str]
    marks: Sequence[str]
    bold: str = "{}"
    plus_minus: str = " ± "
    code: str = "{}"

    def text(self, cell: object, sd: float | None, digits: int) -> str:
        """A cell."""
        if isinstance(cell, list):
            marks = dict(
                zip((SAME, WRONG, EXTRA, MISSING), ("{}", *self.marks), strict=True)
            )
            parts = (marks[kind].format(self.escape(part)) for part, kind in cell)
            return self.code.format("".join(parts))
        if isinstance(cell, str) or pd.isna(cell):
            return self.escape(cell if isinstance(cell, str) else ABSENT)
        if isinstance(cell, Integral):
            return str(cell)
        # A half goes up, whatever its last bit: 54.595 is 54.60.
        text = f"{cell + copysign(1e-10, cell):.{digits}f}"
        if cell and not float(text):
            text = f"{cell:.1g}"  # a small p-value is no zero
        return text if pd.isna(sd) else f"{text}{self.plus_minus}{sd:.{digits}f}"


def spread(
    rows: pd.DataFrame, columns: Mapping[str, str], by: Mapping[str, str]
) -> pd.DataFrame:
    """Means and sample standard deviations over rows of a group, in order of appearance.

    Args:
        rows (pd.DataFrame): values.
        columns (Mapping[str, str]): column to its heading.
        by (Mapping[str, str]): columns that name a group, to their headings.

    Returns:
        pd.DataFrame: a row a group; headings of ``by``, and of each column ``X`` and ``X sd``.
    """
    groups = rows.groupby(list(by), sort=False)[list(columns)]
    both = pd.concat([groups.mean(), groups.std().add_suffix(SD)], axis=1)
    both = both[[name for column in columns for name in (column, column + SD)]]
    headings = {
        name + end: new + end for name, new in columns.items() for end in ("", SD)
    }
    return both.rename(columns=headings).reset_index().rename(columns=by)


def _markdown(text: str) -> str:
    for sign in "\\`*_[]|~$":
        text = text.replace(sign, f"\\{sign}")
    return escape(text, quote=False).replace("\n", " ")


_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "[": "{[}",  # no argument of a row's end
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': r"\textquotedbl{}",
    "\n": " ",
    **{"≤": r"$\le$", "±": r"$\pm$", "×": r"$\times$", "–": "--", "—": "---"},
    **{
        "β": r"$\beta$",
        "η": r"$\eta$",
        "κ": r"$\kappa$",
        "λ": r"$\lambda$",
        "…": r"\dots{}",
    },
}
_LATEX_MARKS = r"""% marks; define these to have them in color
\providecommand{\wrong}[1]{\underline{#1}}
\providecommand{\extra}[1]{\fbox{#1}}
\providecommand{\miss}[1]{$\langle$#1$\rangle$}
"""


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


MARKDOWN = Style(
    _markdown, ("<u>{}</u>", "<ins>{}</ins>", "<del>{}</del>"), bold="**{}**"
)
CSV = Style(str, ("{{~{}~}}", "{{+{}+}}", "[-{}-]"))
LATEX = Style(
    _latex,
    (r"\wrong{{{}}}", r"\extra{{{}}}", r"\miss{{{}}}"),
    bold=r"\textbf{{{}}}",
    plus_minus=r" $\pm$ ",
    code=r"\texttt{{{}}}",
)
HTML = Style(
    escape,
    tuple(f'<mark class="{kind}">{{}}</mark>' for kind in (WRONG, EXTRA, MISSING)),
    bold="<strong>{}</strong>",
    code="<code>{}</code>",
)


def to_markdown(table: Table) -> str:
    """A table of GitHub's Markdown under its caption."""
    rule = ["---:" if table.is_numeric(name) else ":---" for name in table.columns]
    lines = [list(map(_markdown, table.columns)), rule, *table.rows(MARKDOWN)]
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{_markdown(table.caption)}\n\n{body}"


def to_csv(table: Table) -> str:
    """Numbers in full; standard deviations in columns of their own."""

    def full(cell: object) -> str:
        if isinstance(cell, Real):
            return "" if cell != cell else f"{cell:.12g}"
        return "" if cell is None else CSV.text(cell, None, 0)

    return table.frame.astype(object).map(full).to_csv(index=False, lineterminator="\n")


def to_latex(table: Table) -> str:
    """A floating table of LaTeX with the rules of booktabs."""
    names = list(map(_latex, table.columns))
    texts = pd.DataFrame(table.rows(LATEX), columns=names)
    has_marks = table.frame.map(lambda cell: isinstance(cell, list)).to_numpy().any()
    return (_LATEX_MARKS if has_marks else "") + texts.style.hide(axis=0).to_latex(
        caption=_latex(table.caption),
        label=f"tab:{table.name}",
        position="t",
        position_float="centering",
        column_format="".join("lr"[table.is_numeric(name)] for name in table.columns),
        hrules=True,
    )


FORMATS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
