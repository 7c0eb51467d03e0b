"""Whole reports: the requested sections, the available data, and missing results."""

import base64
import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from erjepa.commands.report import main
from erjepa.studies import report
from erjepa.studies.report.build import (
    build_report,
    register_sections,
    sections_of,
)
from erjepa.studies.report.figures import Figure, canvas, draw_bars, draw_curves
from erjepa.studies.report.results import Results
from erjepa.studies.report.sections import SECTIONS
from tests.harness.data import write_jsonl
from tests.harness.fake_output import (
    MAIN_METHODS,
    change_config,
    read_rows,
    write_output,
)


class Page(HTMLParser):
    """Tags of a page, and the values of their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.values = defaultdict(list)  # of each attribute, in order
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            self.values[name].append(value)


def small(folder, **config):
    return write_output(
        folder,
        examples=12,
        **{
            **{"budgets": [1e15, 2e15], "methods": MAIN_METHODS, "seeds": (82, 23)},
            **config,
        },
    )


def headings(page):
    """Of its sections; those that every page has are checked here."""
    summary, *found = re.findall(r"<h2>(.*?)</h2>", page.read_text())
    always = ["What was run", "What is missing", "Terms"]
    assert summary == "Summary" and found[-3:] == always
    return found[:-3]


def test_a_report_has_all_that_the_results_allow(tmp_path):
    page = build_report(small(tmp_path / "out", cosine=False))
    text = page.read_text()
    left_out = ("learning_curves", "lambda_k", "alignment")
    assert headings(page) == [
        section.title
        for name, section in SECTIONS.items()
        if section.by_default and name not in left_out
    ]
    for name in left_out:
        assert f"<li>{SECTIONS[name].title} (synth): " in text
    parsed = Page(text)
    assert set(parsed.values["href"]) == {f"#{one}" for one in parsed.values["id"]}
    assert parsed.values["src"] and all(
        one.startswith("data:image/") for one in parsed.values["src"]
    )
    assert "http" not in re.sub(r'src(set)?="[^"]*"', "", text)
    facts = ("82, 23", "torch 2.13.0", "0123abc", "a processor", "replay.weight=0")
    for value in facts:
        assert value in text
    assert "No run: all have ended" in text
    for figure in (page.parent / "figures").glob("*.png"):
        assert figure.read_bytes().startswith(b"\x89PNG")
        assert figure.with_suffix(".svg").read_text().rstrip().endswith("</svg>")
    names = {path.stem for path in (page.parent / "tables").iterdir()}
    for name in names:
        kinds = {path.suffix for path in (page.parent / "tables").glob(f"{name}.*")}
        assert kinds == {".md", ".csv", ".tex"}
    assert {"accuracy", "significance", "matched_compute_synth"} <= names


def test_sections_are_as_asked(tmp_path):
    report = [
        {"section": "accuracy", "methods": ["SFT"], "title": "One <b>bar</b>"},
        {"section": "accuracy", "methods": ["LLM-JEPA"]},
        "significance",
    ]
    page = build_report(small(tmp_path / "out", report=report))
    assert headings(page) == [
        "One &lt;b&gt;bar&lt;/b&gt;",
        "Accuracy",
        "Paired tests",
    ]
    tables = page.parent / "tables"
    assert (tables / "accuracy.csv").read_text().splitlines()[1].startswith("SFT,")
    assert "LLM-JEPA," in (tables / "accuracy_2.csv").read_text()
    # Files of an earlier report are removed.
    change_config(page.parents[1], report=["accuracy"])
    page = build_report(page.parents[1])
    assert headings(page) == ["Accuracy"]
    assert [path.name for path in sorted(tables.iterdir())] == [
        *("accuracy.csv", "accuracy.md", "accuracy.tex")
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("bar", "section 'bar' is none of accuracy, readings, "),
        ({"methods": ["SFT"]}, "section None is none of"),
        (
            {"section": "accuracy", "method": "SFT"},
            "accuracy takes no method; it takes datasets, methods, remark, title, weights",
        ),
        (
            {"section": "significance", "datasets": ["x"]},
            "significance takes no datasets",
        ),
        ({"section": "accuracy", "methods": ["sft"]}, "method 'sft' is none of SFT, "),
        ({"section": "accuracy", "datasets": ["s"]}, "dataset 's' is none of synth"),
        (
            {"section": "accuracy", "datasets": "synth"},
            "accuracy: datasets: input should",
        ),
        ({"section": ["accuracy"]}, r"section \['accuracy'\] is none of"),
        (
            {"section": "drops_by_accuracy", "width": 0},
            "drops_by_accuracy: width: input should be greater than or equal to 1",
        ),
        ({"section": "drops", "weights": "best"}, "drops: weights: .*'last' or 'ema'"),
        (
            {"section": "alignment", "column": "cosine_of_prompt"},
            "alignment: column: input should be 'cosine' or 'cosine_of_input'",
        ),
        ({"section": "significance", "reference": "x"}, "method 'x' is none of"),
        ({"section": "corrections", "baseline": ""}, "method '' is none of"),
        ({"section": "examples", "between": "x"}, "method 'x' is none of"),
        ({"section": "examples", "improved": "x"}, "method 'x' is none of"),
        ({"section": "outcomes", "errors_of": "x"}, "method 'x' is none of"),
        ({"section": "outcomes", "outcomes_of": "x"}, "method 'x' is none of"),
        ({"section": "continual", "curves": ["x"]}, "method 'x' is none of SFT, "),
    ],
)
def test_what_is_not_there_cannot_be_asked_for(tmp_path, entry, message):
    output = small(tmp_path / "out", report=[entry])
    with pytest.raises(ValueError, match=message):
        sections_of(Results(output).config)


def test_an_unfinished_experiment(tmp_path):
    output = small(
        tmp_path / "out", report=["accuracy", "matched_compute", "corrections"]
    )
    path = output / "results.jsonl"

    def is_done(row):
        if row["method"] == "SFT":
            return False
        return row["method"] == "LLM-JEPA" or row["seed"] == 82

    write_jsonl(path, filter(is_done, read_rows(path)))
    page = build_report(output)
    text = page.read_text()
    for line in (
        "SFT on synth: nothing of seeds 82, 23.",
        "ER-JEPA content on synth: nothing of seed 23.",
        "Corrected errors (synth): no seed is finished of all of SFT, LLM-JEPA, "
        "ER-JEPA content.",
        "Over 2 seeds; fewer are finished of SFT 0, ER-JEPA content 1.",
    ):
        assert f"{line}<" in text, line
    assert headings(page) == ["Accuracy", "Matched compute"]
    main = (page.parent / "tables" / "accuracy.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in main[1:]] == ["LLM-JEPA", "ER-JEPA content"]


def test_the_summary_says_what_came_out(tmp_path):
    """Means, order and differences against the lines of results.jsonl."""
    output = small(tmp_path / "out", report=["accuracy"])
    path = output / "results.jsonl"
    rows = read_rows(path)
    ends = {"SFT": (0.5, 0.3), "LLM-JEPA": (0.25, 0.35), "ER-JEPA content": (0.75, 0.5)}
    for row in rows:
        row["accuracy"] = ends[row["method"]][(82, 23).index(row["seed"])]
    write_jsonl(path, rows)
    text = build_report(output).read_text().replace("\u00a0", " ")
    for said in (
        "SFT, LLM-JEPA and ER-JEPA content on synth, with 2 seeds each: 6 of 6 runs have "
        "ended",
        "ER-JEPA content 62.50% ± 17.68, SFT 40.00% ± 14.14, LLM-JEPA 30.00% ± 7.07.",
        "ER-JEPA content is 32.50 points above LLM-JEPA on average, and above it in 2 of 2.",
        "LLM-JEPA is 10.00 points below SFT on average, and above it in 1 of 2.",
    ):
        assert said in text, said
    write_jsonl(path, [row for row in rows if row["cell"] != rows[-1]["cell"]])
    text = build_report(output).read_text().replace("\u00a0", " ")
    assert "5 of 6 runs have ended" in text and "ER-JEPA content 75.00%, SFT" in text


def test_the_summary_compares_methods_only_on_shared_seeds(tmp_path):
    output = small(tmp_path / "out", report=["accuracy"])
    path = output / "results.jsonl"
    ended = {("LLM-JEPA", 23), ("ER-JEPA content", 82), ("SFT", 23)}
    rows = [row for row in read_rows(path) if (row["method"], row["seed"]) in ended]
    write_jsonl(path, rows)
    text = build_report(output).read_text()
    assert "nan" not in text and "in 0 of 0" not in text
    assert "Seed by seed LLM-JEPA is" in text


def test_runs_that_end_after_their_epochs_are_not_of_equal_compute(tmp_path):
    text = build_report(small(tmp_path / "out", report=["accuracy"], budgets=None))
    assert "on synth, with 2 seeds each" in text.read_text()


def test_figures_follow_the_page(tmp_path):
    """On a narrow screen panels are in a column; in the dark, texts and axes are light."""
    page = build_report(small(tmp_path / "out", report=["single_seeds", "accuracy"]))
    parsed = Page(page.read_text())
    assert parsed.tags.count("img") == 2 and parsed.tags.count("source") == 1
    for path in (page.parent / "figures").glob("*.svg"):
        svg = path.read_text()
        assert "prefers-color-scheme:dark" in svg and "fill: currentColor" in svg
        assert "#1b1b1b" not in svg.replace(":root{color:#1b1b1b}", "")
        assert "fill: #ffffff; stroke: none" not in svg.replace("opacity: 0", "")
    (wide,) = re.findall(
        'viewBox="0 0 ([0-9.]+)', (path.parent / "single_seeds_synth.svg").read_text()
    )
    narrow = base64.b64decode(parsed.values["srcset"][0].partition(",")[2]).decode()
    (width, height) = re.findall('viewBox="0 0 ([0-9.]+) ([0-9.]+)', narrow)[0]
    assert float(width) < float(wide) and float(height) > float(width)


def test_a_figure_and_its_table_share_a_caption(tmp_path):
    page = build_report(small(tmp_path / "out", report=["outcomes", "lengths"]))
    captions = re.findall("<figcaption>(.*?)</figcaption>", page.read_text())
    start = "Answers of ER-JEPA content on synth to the inputs that LLM-JEPA gets"
    assert sum(one.startswith(start) for one in captions) == 1
    # A table that says more than its figure has its own words; facts are two more.
    assert len(captions) == 1 + 2 + 2
    table = page.parent / "tables" / "outcomes_synth.md"
    assert table.read_text().startswith(start)


def test_an_experiment_that_has_not_begun(tmp_path):
    output = small(tmp_path / "out")
    (output / "results.jsonl").unlink()
    page = build_report(output)
    assert headings(page) == []
    assert "0 of 6 runs have ended" in page.read_text()
    assert "Accuracy (all datasets): nothing is scored yet." in page.read_text()


def test_missing_predictions_cost_only_the_sections_that_need_them(tmp_path):
    output = small(tmp_path / "out", report=["accuracy", "structures"])
    next(
        output.glob("cells/*/sft/seed_23/evaluation/flops_2/predictions.jsonl")
    ).unlink()
    page = build_report(output)
    assert headings(page) == ["Accuracy"]
    assert "predictions cannot be read" in page.read_text()


def test_predictions_on_other_examples_are_not_compared(tmp_path):
    output = small(tmp_path / "out", report=["outcomes"])
    path = next(output.glob("cells/*/llm-jepa/seed_23/evaluation/flops_2/*.jsonl"))
    path.write_text(path.read_text().replace('"target": "', '"target": "x', 1))
    assert "scored on different examples" in build_report(output).read_text()


def test_sections_on_regexes_are_left_out_of_other_tasks(tmp_path):
    output = small(tmp_path / "out", datasets={"qa": "x"}, report=["lengths"])
    text = build_report(output).read_text()
    assert "Length of the target (qa): qa is nq_open; this needs nl_rx." in text


def test_hostile_text_is_text(tmp_path):
    hostile = '<script>alert("x")</script>&$a_$$\\frac{$|%'
    methods = {"SFT": MAIN_METHODS["SFT"], hostile: {"replay.selection": hostile}}
    sections = ["accuracy", "significance", "matched_compute", "outcomes", "examples"]
    output = small(tmp_path / "out", methods=methods, name=hostile, report=sections)
    for path in output.rglob("predictions.jsonl"):
        lines = read_rows(path)
        for line in lines:
            line["prompt"] = hostile + "\x1b[2J\ud83d"
            line["target"] = hostile + line["target"]
            line["output"] = hostile + line["output"]
        write_jsonl(path, lines)
    results = output / "results.jsonl"
    rows = read_rows(results)
    write_jsonl(results, [row for row in rows if row["cell"] != rows[-1]["cell"]])
    page = build_report(output)
    assert "Examples" in headings(page) and "nothing of seed 23" in page.read_text()
    assert all("\x1b" not in f.read_text() for f in page.parent.glob("tables/*"))
    parsed = Page(page.read_text())
    assert any(hostile in alt for alt in parsed.values["alt"])
    assert "script" not in parsed.tags and "&lt;script&gt;" in page.read_text()
    expected = (
        "html head meta title style body h1 h2 nav ul li a section div table picture"
    )
    expected += (
        " source dl dt dd thead tbody tr th td figure img figcaption p code mark"
    )
    assert set(parsed.tags) <= {*expected.split(), "strong", "footer"}


def test_the_same_results_give_the_same_files(tmp_path):
    output = small(tmp_path / "out", report=["matched_compute", "significance"])

    def files():
        folder = build_report(output).parent
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert files() == files()


def test_the_command(tmp_path, capsys):
    output = small(tmp_path / "out", report=["readings"])
    main([str(output)])
    assert capsys.readouterr().out.strip() == str(output / "report" / "index.html")
    main(["--sections"])
    listed = capsys.readouterr().out
    assert "significance: Paired tests of methods against" in listed
    assert "    methods, reference, title, weights\n" in listed
    with pytest.raises(SystemExit) as failed:
        main([str(tmp_path)])
    assert failed.value.code == 2
    assert "is not the output of an experiment" in capsys.readouterr().err


def test_the_section_of_contributing(tmp_path, monkeypatch):
    """A module of the package is found without being named anywhere."""
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()
    written = text.partition("### A section of the report")[2]
    code = re.search("```python\n(.*?)```", written, re.DOTALL).group(1)
    (tmp_path / "minutes_section.py").write_text(code)
    monkeypatch.setattr(report, "__path__", [*report.__path__, str(tmp_path)])
    monkeypatch.setitem(SECTIONS, "minutes", None)  # removed at the end
    register_sections()
    entry = {"section": "minutes", "methods": ["SFT"], "datasets": ["synth"]}
    page = build_report(small(tmp_path / "out", report=[entry]))
    assert headings(page) == ["Time of training"]
    table = (page.parent / "tables" / "minutes_synth.md").read_text()
    assert "| SFT |" in table and "LLM-JEPA" not in table


def test_a_tie_is_neither_above_nor_below(tmp_path):
    output = small(tmp_path / "out", report=["accuracy"])
    path = output / "results.jsonl"
    path.write_text(re.sub(r'"accuracy": [\d.]+', '"accuracy": 0.5', path.read_text()))
    page = " ".join(build_report(output).read_text().split())
    assert "LLM-JEPA is level with SFT on average" in page


def test_of_one_seed_no_spread_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(Figure, "saved", lambda *_: b"")  # their captions alone count
    output = small(tmp_path / "out", seeds=(1,))
    texts = [build_report(output), *(output / "report" / "tables").glob("*.md")]
    for path in texts:
        assert not re.search("±|sample standard", path.read_text()), path
    assert "One seed." in texts[0].read_text()


@pytest.mark.parametrize("draw", [draw_bars, draw_curves])
def test_an_axis_of_accuracy_begins_at_0_at_the_lowest(draw):
    """Nothing right, and a spread that reaches below it."""
    for values in ([0.0] * 4, [0.0, 9.0, 0.0, 1.0]):
        rows = pd.DataFrame({"method": "SFT", "at": [1, 1, 2, 2], "accuracy": values})
        picture, (axes,) = canvas()
        draw(axes, rows, "at", "accuracy", ["SFT"])
        Figure("", picture).saved("svg")
        assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > max(values)
