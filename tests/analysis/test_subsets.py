"""Accuracy of subsets of the targets."""

from erjepa.analysis.subsets import accuracy_by_length, accuracy_by_structure

TARGETS = ["~(dog)", "(dog)|(ring)", "~((dog)|(ring))", "." * 21]
CORRECT = [True, False, True, None]


def test_an_example_counts_in_every_structure_it_has():
    shares = accuracy_by_structure(TARGETS, CORRECT)
    assert shares["complement"] == (2, 2)
    assert shares["alternation"] == (1, 2)
    assert shares["quantifier"] == (0, 0)


def test_an_example_counts_in_one_group_of_length():
    assert accuracy_by_length(TARGETS, CORRECT) == {
        "≤10": (2, 3),
        "11–15": (0, 0),
        "16–20": (0, 0),
        ">20": (0, 1),
    }
