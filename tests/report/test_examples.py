"""Which examples are shown, and what is marked in them."""

import pandas as pd

from erjepa.report.examples import mark_differences
from erjepa.report.table import EXTRA, MISSING, SAME, WRONG
from erjepa.statistics.examples import choose_examples
from erjepa.tasks.nl_rx.regex_kinds import regex_tokens


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
    mark = lambda target, output: mark_differences(target, output, regex_tokens)  # noqa: E731
    assert mark(".*dog.*", ".*truck.*") == [
        (".*", SAME),
        ("truck", WRONG),
        (".*", SAME),
    ]
    assert mark("(dog)", "(dog).*") == [("(dog)", SAME), (".*", EXTRA)]
    assert mark("~(dog)", "(dog)") == [("~", MISSING), ("(dog)", SAME)]
    assert mark("[a-z]+", "[A-Z]+") == [("[A-Z]", WRONG), ("+", SAME)]
    assert mark("dog", "") == [("dog", MISSING)]
    # As the paper marks it (Table "Some regular expressions generated").
    target = ".*(.*)(([AEIOUaeiou])*).*"
    assert mark(target, target + ".*.*") == [(target, SAME), (".*.*", EXTRA)]
    assert mark("dog", "dog") == [("dog", SAME)]


def test_marks_do_not_ignore_what_is_frequent():
    # difflib takes a frequent part of a long sequence for junk unless told otherwise.
    output = ".*" * 200
    assert mark_differences("x" + output, output, regex_tokens) == [
        ("x", MISSING),
        (output, SAME),
    ]
