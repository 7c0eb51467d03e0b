"""Tables as Markdown, CSV, LaTeX and HTML."""

import csv
import io
from html import escape

from erjepa.analysis.examples import EXTRA, MISSING, SAME, WRONG
from erjepa.analysis.statistics import Spread
from erjepa.report.table import Style, Table, number


def to_markdown(table: Table) -> str:
    """A table of GitHub's Markdown under its caption."""
    style = Style(
        _markdown,
        bold="**{}**",
        plus_minus=" ± ",
        marks={
            SAME: "{}",
            WRONG: "<u>{}</u>",
            EXTRA: "<ins>{}</ins>",
            MISSING: "<del>{}</del>",
        },
    )
    head = [_markdown(column.name) for column in table.columns]
    rule = ["---:" if is_number else ":---" for is_number in table.numeric]
    lines = [head, rule, *table.write(style)]
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{_markdown(table.caption)}\n\n{body}"


def _markdown(text: str) -> str:
    for sign in "\\`*_[]|~$":
        text = text.replace(sign, f"\\{sign}")
    return escape(text, quote=False).replace("\n", " ")


def to_csv(table: Table) -> str:
    """Numbers in full, in the columns' units; standard deviations in columns of their own."""
    style = Style(
        str,
        bold="{}",
        plus_minus="",
        marks={SAME: "{}", WRONG: "{{~{}~}}", EXTRA: "{{+{}+}}", MISSING: "[-{}-]"},
    )
    texts = table.write(style)
    spreads = [
        any(isinstance(cell, Spread) for cell in table.column(index))
        for index in range(len(table.columns))
    ]
    header: list[str] = []
    for column, has_sd in zip(table.columns, spreads, strict=True):
        header += [column.name, f"{column.name} sd"][: 1 + has_sd]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row, shown in zip(table.rows, texts, strict=True):
        line: list[str] = []
        for cell, text, column, has_sd in zip(
            row, shown, table.columns, spreads, strict=True
        ):
            value = number(cell)
            sd = cell.sd if isinstance(cell, Spread) else None
            plain = "" if cell is None else text
            line.append(plain if value is None else _full(value, column.scale))
            line += [_full(sd, column.scale)][:has_sd]
        writer.writerow(line)
    return file.getvalue()


def _full(value: float | None, scale: float) -> str:
    return "" if value is None else f"{value * scale:.12g}"


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
    "≤": r"$\le$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "—": "---",
    "β": r"$\beta$",
    "η": r"$\eta$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
}
_LATEX_MARKS = r"""% marks; define these to have them in color
\providecommand{\wrong}[1]{\underline{#1}}
\providecommand{\extra}[1]{\fbox{#1}}
\providecommand{\miss}[1]{$\langle$#1$\rangle$}
"""


def to_latex(table: Table) -> str:
    """A floating table of LaTeX with the rules of booktabs."""
    style = Style(
        _latex,
        bold=r"\textbf{{{}}}",
        plus_minus=r" $\pm$ ",
        marks={
            SAME: "{}",
            WRONG: r"\wrong{{{}}}",
            EXTRA: r"\extra{{{}}}",
            MISSING: r"\miss{{{}}}",
        },
        code=r"\texttt{{{}}}",
    )
    head = [_latex(column.name) for column in table.columns]
    head, *body = (f"\t\t{' & '.join(row)} \\\\" for row in [head, *table.write(style)])
    align = "".join("r" if is_number else "l" for is_number in table.numeric)
    has_marks = any(isinstance(cell, list) for row in table.rows for cell in row)
    return (_LATEX_MARKS if has_marks else "") + "\n".join(
        [
            r"\begin{table}[t]",
            "\t\\centering",
            f"\t\\caption{{{_latex(table.caption)}}}",
            f"\t\\label{{tab:{table.name}}}",
            f"\t\\begin{{tabular}}{{{align}}}",
            *("\t\t\\toprule", head, "\t\t\\midrule", *body, "\t\t\\bottomrule"),
            "\t\\end{tabular}",
            "\\end{table}\n",
        ]
    )


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def to_html(table: Table) -> str:
    """A table of HTML with its caption; marks are ``<mark class="wrong">`` and so on."""
    style = Style(
        escape,
        bold="<strong>{}</strong>",
        plus_minus=" ± ",
        marks={
            SAME: "{}",
            **{
                kind: f'<mark class="{kind}">{{}}</mark>'
                for kind in (WRONG, EXTRA, MISSING)
            },
        },
        code="<code>{}</code>",
    )
    kinds = ["number" if is_number else "text" for is_number in table.numeric]
    head = [escape(column.name) for column in table.columns]
    return "\n".join(
        [
            f"<table>\n<caption>{escape(table.caption)}</caption>",
            f"<thead>{_html_row('th', kinds, head)}</thead>\n<tbody>",
            *(_html_row("td", kinds, row) for row in table.write(style)),
            "</tbody>\n</table>",
        ]
    )


def _html_row(tag: str, kinds: list[str], cells: list[str]) -> str:
    pairs = zip(kinds, cells, strict=True)
    inner = "".join(f'<{tag} class="{kind}">{cell}</{tag}>' for kind, cell in pairs)
    return f"<tr>{inner}</tr>"


FORMATS = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
