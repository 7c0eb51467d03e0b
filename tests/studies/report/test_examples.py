"""Which examples are shown, and which of their parts are highlighted."""

from collections import Counter

import pandas as pd

from erjepa.studies.report.examples import choose_examples, mark_differences
from erjepa.studies.report.results import Results
from erjepa.studies.report.table import EXTRA, MISSING, SAME, WRONG
from erjepa.tasks.nl_rx.regex_kinds import prediction_category
from tests.harness.data import write_jsonl
from tests.harness.fake_output import read_rows, write_output
from tests.harness.report_parts import BUDGETS, MAIN, SEEDS, build


def test_the_rule():
    rows = [
        ("over", False, "t0"),
        ("over", True, "t1"),
        ("over", False, "t1"),  # a target that has been shown
        ("over", False, "t2"),
        ("under", False, "t3"),
        ("over", False, "t4"),
        ("under", True, "t5"),
        ("over", True, "t6"),
    ]
    candidates = pd.DataFrame(rows, columns=["group", "right", "target"])

    def choose(right, wrong, groups=("over", "under")):
        found = choose_examples(candidates, groups, {True: right, False: wrong})
        return list(found.target)

    assert choose(2, 3) == ["t1", "t0", "t2", "t5", "t3"]
    assert choose(1, 0) == ["t1"]
    assert choose(0, 2) == ["t0", "t3"]  # groups take turns
    assert choose(3, 9) == ["t1", "t6", "t0", "t2", "t4", "t5", "t3"]
    assert choose(1, 1, ("under", "over")) == ["t5", "t3"]
    assert choose(0, 0) == []


def test_marks():
    assert mark_differences(".*dog.*", ".*truck.*") == [
        (".*", SAME),
        ("truck", WRONG),
        (".*", SAME),
    ]
    assert mark_differences("(dog)", "(dog).*") == [("(dog)", SAME), (".*", EXTRA)]
    assert mark_differences("~(dog)", "(dog)") == [("~", MISSING), ("(dog)", SAME)]
    assert mark_differences("[a-z]+", "[A-Z]+") == [("[A-Z]", WRONG), ("+", SAME)]
    assert mark_differences("dog", "") == [("dog", MISSING)]
    # As the paper marks it (Table "Some regular expressions generated").
    target = ".*(.*)(([AEIOUaeiou])*).*"
    assert mark_differences(target, target + ".*.*") == [
        (target, SAME),
        (".*.*", EXTRA),
    ]
    assert mark_differences("dog", "dog") == [("dog", SAME)]


def test_marks_do_not_ignore_what_is_frequent():
    # difflib takes a frequent part of a long sequence for junk unless told otherwise.
    output = ".*" * 200
    assert mark_differences("x" + output, output) == [
        ("x", MISSING),
        (output, SAME),
    ]


def test_examples(results, predictions):
    _, (table,) = build("examples", results, "synth")
    starts = [row for row in table.rows if row[0]]
    assert Counter(row[0] for row in starts)["over-generation"] > 1
    assert len(table.rows) == len(starts) * (1 + len(MAIN)) == 9 * 4
    llm_jepa = [row[5] for row in table.rows if row[3] == "LLM-JEPA"]
    assert (llm_jepa.count("yes"), llm_jepa.count("no")) == (2, 7)
    assert all(row[5] == "yes" for row in table.rows if row[3] == "ER-JEPA content")
    first = table.rows[:4]
    category, seed = first[0][0], int(first[0][1])
    by_method = {m: predictions[m, seed, BUDGETS[-1]] for m in MAIN}
    # The first example of the first seed that the rule allows.
    at = next(
        i
        for i, (sft, llm, er) in enumerate(zip(*by_method.values(), strict=True))
        if prediction_category(sft["target"], sft["output"]) == category
        and llm["exact_match"]
        and er["exact_match"]
    )
    assert seed == SEEDS[0]
    assert first[0][2] == by_method["SFT"][at]["prompt"]
    for row, method in zip(first[1:], MAIN, strict=True):
        one = by_method[method][at]
        kept = "".join(part for part, kind in row[4] if kind != "missing")
        assert (row[3], kept) == (method, one["output"])
        assert row[5] == ("yes" if one["exact_match"] else "no")


def test_examples_of_other_tasks_show_answers(tmp_path):
    output = write_output(
        tmp_path / "out", datasets={"qa": "x"}, seeds=(1,), budgets=[1e12]
    )
    for path in output.rglob("predictions.jsonl"):
        lines = read_rows(path)
        for line in lines:
            line["extracted"] += "; Rome" if not line["exact_match"] else ""
            line["target"] += f" {line['id']}"
        write_jsonl(path, lines)
    _, (table,) = build("examples", Results(output), "qa")
    assert table.rows[0][0] == "wrong"
    assert table.rows[0][4].startswith(("Paris ", "12 ", "the moon "))
    assert len(table.rows) == 5 * (1 + len(MAIN)) and "at most 5." in table.caption
    # Of several answers the first is shown, and that others follow.
    assert table.rows[1][5] == "no" and table.rows[1][4].endswith(" …")
    assert ";" not in table.rows[1][4]
    assert all(isinstance(cell, str) for cell in table.column(4))
