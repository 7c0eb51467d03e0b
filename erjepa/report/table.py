"""Tables: a frame in the units that are shown, and how each format writes it."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from math import copysign
from numbers import Integral, Real

import pandas as pd

from erjepa.analysis.examples import EXTRA, MISSING, WRONG, Marked

ABSENT, SD = "—", " sd"
PLAIN, BEST = "plain", "best"


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        caption (str): what it shows, over what.
        frame (pd.DataFrame): its cells: texts, numbers, marked texts; None or NaN where there
            is no value. A column ``X sd`` has the standard deviations of ``X``.
        digits (Mapping[str, int]): column to digits after the point, where they are not two.
        best (Collection[str]): columns whose greatest number stands out, unless all are equal.
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
        is_sd = {name + SD for name in self.frame}
        return [name for name in self.frame if name not in is_sd]

    @property
    def kinds(self) -> list[str]:
        """Of each column whether it is shown as ``number`` or ``text``."""
        numeric = [any(map(_is_number, self.frame[name])) for name in self.columns]
        return ["number" if one else "text" for one in numeric]

    def rows(self, style: "Style") -> list[list[str]]:
        """All cells as texts of a format, row by row."""
        columns = [self._cells(name) for name in self.columns]
        return [list(map(style.write, row)) for row in zip(*columns, strict=True)]

    @property
    def html_rows(self) -> list[list[str]]:
        """All cells as HTML; marks are ``<mark class="wrong">`` and so on."""
        return self.rows(HTML)

    def _cells(self, column: str) -> Iterator[Marked]:
        cells = self.frame[column].tolist()
        sds = self.frame.get(column + SD, pd.Series([None] * len(cells))).tolist()
        numbers = set(filter(_is_number, cells))
        best = max(numbers) if column in self.best and len(numbers) > 1 else None
        for cell, sd in zip(cells, sds, strict=True):
            if isinstance(cell, list):
                yield cell
            else:
                kind = BEST if best is not None and cell == best else PLAIN
                yield [(_text(cell, sd, self.digits.get(column, 2)), kind)]


@dataclass(frozen=True)
class Style:
    """How a format writes cells.

    Args:
        escape (Callable[[str], str]): a text, so that nothing in it is read as markup.
        marks (Mapping[str, str]): what is the matter with a part of a text, to its format.
        code (str): format of a whole text with marked parts.
    """

    escape: Callable[[str], str]
    marks: Mapping[str, str]
    code: str = "{}"

    def write(self, cell: Marked) -> str:
        """A cell of marked parts."""
        parts = [self.marks.get(kind, "{}").format(self.escape(x)) for x, kind in cell]
        is_code = {kind for _, kind in cell}.isdisjoint((PLAIN, BEST))
        return (self.code if is_code else "{}").format("".join(parts))


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
    groups = rows.groupby(list(by), sort=False)
    found = {}
    for column, heading in columns.items():
        found[heading] = groups[column].mean()
        found[heading + SD] = groups[column].std()
    return pd.DataFrame(found).reset_index().rename(columns=by)


def spread_across(
    rows: pd.DataFrame,
    value: str,
    by: Mapping[str, str],
    across: str,
    names: Iterable[str] | None = None,
) -> pd.DataFrame:
    """``spread`` of one value, with columns ``X`` and ``X sd`` for each ``X`` in ``across``.

    They are in order of appearance, or those of ``names``.
    """
    columns = {}
    for name in rows[across].unique() if names is None else names:
        values = rows[value].where(rows[across] == name)
        groups = values.groupby([rows[key] for key in by], sort=False)
        columns[name], columns[name + SD] = groups.mean(), groups.std()
    return pd.DataFrame(columns).reset_index().rename(columns=by)


def _is_number(cell: object) -> bool:
    return isinstance(cell, Real) and cell == cell


def _text(cell: object, sd: float | None, digits: int) -> str:
    if isinstance(cell, str) or pd.isna(cell):
        return cell if isinstance(cell, str) else ABSENT
    if isinstance(cell, Integral):
        return str(cell)
    # A half goes up, whatever its last bit: 54.595 is 54.60.
    text = f"{cell + copysign(1e-10, cell):.{digits}f}"
    if cell and not float(text):
        text = f"{cell:.1g}"  # a small p-value is no zero
    return text if pd.isna(sd) else f"{text} ± {sd:.{digits}f}"


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
_LATEX_MARKS = r"""% marks; define these to have them in color
\providecommand{\wrong}[1]{\underline{#1}}
\providecommand{\extra}[1]{\fbox{#1}}
\providecommand{\miss}[1]{$\langle$#1$\rangle$}
"""


def _markdown(text: str) -> str:
    for sign in "\\`*_[]|~$":
        text = text.replace(sign, f"\\{sign}")
    return escape(text, quote=False).replace("\n", " ")


_MARKS = (BEST, WRONG, EXTRA, MISSING)
_TAGS = ["<strong>{}</strong>", *(f'<mark class="{x}">{{}}</mark>' for x in _MARKS[1:])]
_COMMANDS = (r"\textbf{{{}}}", r"\wrong{{{}}}", r"\extra{{{}}}", r"\miss{{{}}}")
_ELEMENTS = ("**{}**", "<u>{}</u>", "<ins>{}</ins>", "<del>{}</del>")
_BRACES = ("{}", "{{~{}~}}", "{{+{}+}}", "[-{}-]")
MARKDOWN, CSV = (
    Style(_markdown, dict(zip(_MARKS, _ELEMENTS, strict=True))),
    Style(str, dict(zip(_MARKS, _BRACES, strict=True))),
)
LATEX = Style(
    lambda text: text.translate(_LATEX),
    dict(zip(_MARKS, _COMMANDS, strict=True)),
    code=r"\texttt{{{}}}",
)
HTML = Style(escape, dict(zip(_MARKS, _TAGS, strict=True)), code="<code>{}</code>")


def printable(text: str) -> str:
    """A text without what no page, table or printer takes: a ? for each such character.

    Answers of a model may hold control characters, and halves of letters.
    """
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", "?", text)


def to_markdown(table: Table) -> str:
    """A table of GitHub's Markdown under its caption."""
    rule = [{"number": "---:", "text": ":---"}[kind] for kind in table.kinds]
    lines = [list(map(_markdown, table.columns)), rule, *table.rows(MARKDOWN)]
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{_markdown(table.caption)}\n\n{body}"


def to_csv(table: Table) -> str:
    """Numbers in full; standard deviations in columns of their own."""

    def full(cell: object) -> object:
        text = CSV.write(cell) if isinstance(cell, list) else cell
        # A spreadsheet would compute what looks like a formula.
        is_formula = isinstance(text, str) and text.startswith(tuple("=+-@\t\r"))
        return f"'{text}" if is_formula else text

    frame = table.frame.astype(object).map(full).infer_objects()
    return frame.to_csv(index=False, float_format="%.12g", lineterminator="\n")


def to_latex(table: Table) -> str:
    """A floating table of LaTeX with the rules of booktabs."""
    texts = pd.DataFrame(table.rows(LATEX), columns=map(LATEX.escape, table.columns))
    has_marks = table.frame.map(lambda cell: isinstance(cell, list)).to_numpy().any()
    return (_LATEX_MARKS if has_marks else "") + texts.style.hide(axis=0).to_latex(
        caption=LATEX.escape(table.caption),
        label=f"tab:{table.name}",
        position="t",
        position_float="centering",
        column_format="".join("lr"[kind == "number"] for kind in table.kinds),
        hrules=True,
    )


FORMATS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
