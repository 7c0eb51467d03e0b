"""Tables in every format, with nothing in them read as markup."""

import csv
import io

import pytest

from erjepa.analysis.statistics import Spread, spread
from erjepa.report.formats import to_csv, to_html, to_latex, to_markdown
from erjepa.report.table import Column, Table

TABLE = Table(
    "small",
    "A & B < 50%.",
    [
        Column("Method"),
        Column("Accuracy (%)", scale=100, best=True),
        Column("p", digits=4),
        Column("n"),
        Column("Text"),
    ],
    [
        ["a|b_<i>", spread([0.5, 0.52]), 0.00001, 3, [("x.", "same"), ("*", "extra")]],
        [
            "$[c]",
            Spread(0.25, None, 1, 0.25, 0.25),
            None,
            12,
            [("&", "missing"), ("_", "wrong")],
        ],
    ],
)


def test_markdown():
    assert to_markdown(TABLE) == (
        "A &amp; B &lt; 50%.\n\n"
        "| Method | Accuracy (%) | p | n | Text |\n"
        "| :--- | ---: | ---: | ---: | :--- |\n"
        "| a\\|b\\_&lt;i&gt; | **51.00 ± 1.41** | 1e-05 | 3 | x.<ins>\\*</ins> |\n"
        "| \\$\\[c\\] | 25.00 | — | 12 | <del>&amp;</del><u>\\_</u> |\n"
    )


def test_csv_has_full_numbers_and_deviations_apart():
    header, first, second = csv.reader(io.StringIO(to_csv(TABLE)))
    assert header == ["Method", "Accuracy (%)", "Accuracy (%) sd", "p", "n", "Text"]
    assert first[0] == "a|b_<i>" and second[0] == "$[c]"
    assert float(first[1]) == pytest.approx(51)
    assert float(first[2]) == pytest.approx(2**0.5, rel=1e-11)
    assert float(first[3]) == 1e-5 and first[4:] == ["3", "x.{+*+}"]
    assert second[1:] == ["25", "", "", "12", "[-&-]{~_~}"]


def test_latex():
    text = to_latex(TABLE)
    assert r"\caption{A \& B \textless{} 50\%.}" in text
    assert r"\begin{tabular}{lrrrl}" in text
    assert (
        r"a\textbar{}b\_\textless{}i\textgreater{} & \textbf{51.00 $\pm$ 1.41} & 1e-05 & 3 "
        r"& \texttt{x.\extra{*}} \\" in text
    )
    # A row that begins with a bracket would be an argument of the row's end before it.
    assert r"\$[c]" not in text and r"\${[}c] & 25.00 & --- & 12" in text
    assert r"\providecommand{\extra}" in text
    plain = Table("plain", "", [Column("λ")], [["~^\\{}"]])
    assert r"\providecommand" not in to_latex(plain)
    assert r"\textasciitilde{}\textasciicircum{}\textbackslash{}\{\}" in to_latex(plain)


def test_html():
    text = to_html(TABLE)
    assert "<caption>A &amp; B &lt; 50%.</caption>" in text
    assert '<td class="text">a|b_&lt;i&gt;</td>' in text and "<i>" not in text
    assert '<td class="number"><strong>51.00 ± 1.41</strong></td>' in text
    assert '<code>x.<mark class="extra">*</mark></code>' in text
    assert '<th class="number">n</th><th class="text">Text</th>' in text
    plain = to_html(Table("plain", "", [Column("a"), Column("b")], [["x", 1]]))
    assert '<td class="text">x</td><td class="number">1</td>' in plain
    assert '<mark class="missing">&amp;</mark><mark class="wrong">_</mark>' in text


def test_only_the_greatest_number_stands_out():
    rows = [["a", 1.0], ["b", 3.0], ["c", None], ["d", 3.0], ["e", 2.0]]
    table = Table("t", "", [Column("x", best=True), Column("y", best=True)], rows)
    assert to_html(table).count("<strong>3.00</strong>") == 2
    assert to_html(table).count("<strong>") == 2


def test_a_ragged_table_is_an_error():
    with pytest.raises(ValueError, match="table t: a row has 2 cells, there are 1"):
        Table("t", "", [Column("x")], [["a", "b"]])
