"""Which examples are shown, and what is marked in them."""

from erjepa.analysis.examples import (
    EXTRA,
    MISSING,
    SAME,
    WRONG,
    Choice,
    choose_examples,
    mark_differences,
)
from erjepa.analysis.regex_tokens import regex_tokens


def test_the_rule():
    targets = ["t0", "t1", "t2", "t1", "t4", "t5"]
    baseline = {
        82: ["over", "over", "correct", "over", "under", "over"],
        23: ["over", "over", "over", "over", "under", "over"],
    }
    between = {
        82: ["over", "correct", "over", "over", "under", "over"],
        23: ["over", "over", "over", "over", "correct", "over"],
    }
    improved = {
        82: ["correct", "correct", "correct", "correct", "over", "correct"],
        23: ["correct"] * 6,
    }

    def choose(right, wrong):
        groups = ("over", "under")
        arguments = (baseline, between, improved, targets, groups, "correct")
        return choose_examples(*arguments, right, wrong)

    # Example 3 has a target that has been shown; 82's under-generation is not corrected.
    assert choose(2, 3) == [
        Choice("over", 82, 1),
        Choice("over", 82, 0),
        Choice("over", 82, 5),
        Choice("over", 23, 2),
        Choice("under", 23, 4),
    ]
    assert choose(1, 0) == [Choice("over", 82, 1)]
    assert choose(0, 2) == [Choice("over", 82, 0), Choice("over", 82, 3)]
    assert choose(0, 0) == []
    # Groups take turns, so neither has the whole quota.
    between[23][4] = "under"
    assert choose(0, 2) == [Choice("over", 82, 0), Choice("under", 23, 4)]


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
