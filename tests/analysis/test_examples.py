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
    targets = ["t0", "t1", "t2", "t1", "t4"]
    baseline = {
        82: ["over", "over", "right", "over", "under"],
        23: ["over"] * 4 + ["under"],
    }
    improved = {82: ["right", "right", "right", "right", "over"], 23: ["right"] * 5}
    arguments = (baseline, improved, targets, ("over", "under"), "right")
    # Example 3 has a target that has been shown; 82's under-generation is not
    # corrected.
    assert choose_examples(*arguments, per_group=3) == [
        Choice("over", 82, 0),
        Choice("over", 82, 1),
        Choice("over", 23, 2),
        Choice("under", 23, 4),
    ]
    assert choose_examples(*arguments, per_group=1) == [
        Choice("over", 82, 0),
        Choice("under", 23, 4),
    ]
    del improved[82]
    assert choose_examples(*arguments, per_group=1)[0] == Choice("over", 23, 0)


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
