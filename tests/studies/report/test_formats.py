"""Tables in every format, with their texts escaped."""

import csv
import io

import pandas as pd
import pytest

from erjepa.studies.report.table import HTML, Table, to_csv, to_latex, to_markdown

TABLE = Table(
    "A & B < 50%.",
    pd.DataFrame(
        {
            "Method": ["a|b_<i>", "$[c]"],
            "Accuracy (%)": [51.0, 25.0],
            "Accuracy (%) sd": [2**0.5, None],
            "p": [0.00001, None],
            "n": [3, 12],
            "Text": [
                [("x.", "same"), ("*", "extra")],
                [("&", "missing"), ("_", "wrong")],
            ],
        }
    ),
    digits={"p": 4},
    best=["Accuracy (%)"],
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
    plain = Table("", pd.DataFrame({"λ": ["~^\\{}"]}))
    assert r"\providecommand" not in to_latex(plain)
    assert r"\textasciitilde{}\textasciicircum{}\textbackslash{}\{\}" in to_latex(plain)


def test_html():
    first, second = TABLE.rows(HTML)
    assert first[0] == "a|b_&lt;i&gt;"
    assert first[1] == "<strong>51.00 ± 1.41</strong>" and second[1] == "25.00"
    assert first[4] == '<code>x.<mark class="extra">*</mark></code>'
    marks = '<mark class="missing">&amp;</mark><mark class="wrong">_</mark>'
    assert second[4] == f"<code>{marks}</code>"
    assert TABLE.kinds == ["text", "number", "number", "number", "text"]


def test_only_the_greatest_number_stands_out():
    rows = {"x": list("abcde"), "y": [1.0, 3.0, None, 3.0, 2.0]}
    table = Table("", pd.DataFrame(rows), best=["x", "y"])
    shown = [row[1] for row in table.rows(HTML)]
    assert shown == [
        "1.00",
        "<strong>3.00</strong>",
        "—",
        "<strong>3.00</strong>",
        "2.00",
    ]
    assert [row[0] for row in table.rows(HTML)] == list("abcde")


def test_among_equals_none_stands_out():
    table = Table("", pd.DataFrame({"x": [0.0, 0.0, None]}), best=["x"])
    assert [row[0] for row in table.rows(HTML)] == ["0.00", "0.00", "—"]


def test_halves_go_up():
    """Whatever the last bit of a mean says: these two are below the half, one bit."""
    values = [54.595, 35.325, -54.595, 1e-7, 0.0]
    table = Table("", pd.DataFrame({"x": values}))
    shown = [row[0] for row in table.rows(HTML)]
    assert shown == ["54.60", "35.33", "-54.60", "1e-07", "0.00"]


def test_a_mean_of_differences_that_rounds_to_zero_is_zero():
    columns = {"x": [-7e-17, 2e-3, -2e-3], "x sd": [0.76, 0.5, 0.5]}
    shown = [row[0] for row in Table("", pd.DataFrame(columns)).rows(HTML)]
    assert shown == ["0.00 ± 0.76", "0.00 ± 0.50", "0.00 ± 0.50"]


def test_csv_holds_no_formula():
    """Neither in cells nor in names of columns, which may be those of methods."""
    rows = {"=m": ["=1+1", [("=x", "same")]], "-n": -1.0}
    written = csv.reader(io.StringIO(to_csv(Table("", pd.DataFrame(rows)))))
    assert list(written) == [["'=m", "'-n"], ["'=1+1", "-1"], ["'=x", "-1"]]
