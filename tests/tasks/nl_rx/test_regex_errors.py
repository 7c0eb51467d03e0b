"""Categories of regex errors."""

import pytest

from erjepa.tasks.nl_rx.regex_kinds import (
    CORRECT,
    ERROR_CATEGORIES,
    is_right_beginning,
    prediction_category,
)

OVER, UNDER, SAME, SYNTAX = ERROR_CATEGORIES


@pytest.mark.parametrize(
    ("target", "output", "category"),
    [
        ("(dog)", "(dog)", CORRECT),
        ("(dog)", " (dog)\n", CORRECT),
        (".*dog.*", ".*dog.*.*", OVER),
        (".*dog.*", "dog.*", UNDER),
        (".*dog.*", ".*truck.*", SAME),  # a word is one token, however long
        (".*[0-9].*", ".*[AEIOUaeiou].*", SAME),
        ("(dog){2,}", "(dog){12,}", SAME),
        ("(a)&(b)", "(b)&(a)", SAME),  # the same lines, but not the same text
        (".*dog.*", ".*dog.*)", SYNTAX),  # longer, but no regex
        (".*dog.*", "(", SYNTAX),
        ("(dog)", "", SYNTAX),
        ("(dog)", "*", SYNTAX),
        ("(dog)", "(" * 5000, SYNTAX),
        ("(dog)", "(" * 5000 + "a" + ")" * 5000, OVER),
    ],
)
def test_categories(target, output, category):
    assert prediction_category(target, output) == category


def test_right_beginnings():
    target = ".*dog.*"
    assert is_right_beginning(target, ".*dog.*.*")
    assert is_right_beginning(f" {target}\n", f"{target} and more")
    assert not is_right_beginning(target, f" {target}\n")  # it is right
    assert not is_right_beginning(target, ".*dog")
    assert not is_right_beginning(target, f"~({target})")
