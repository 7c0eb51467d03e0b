"""The summary of an evaluation is read as it was written, or refused."""

import json

import pytest

from erjepa.tasks.score import write_scores
from erjepa.utils.summary import Reading, Summary, read_summary

READING = {"share": 0.5, "right": 1, "examples": 2, "interval": [0.1, 0.9]}
SCORED = {"task": "nl_rx", "accuracy": 0.5, "primary": "exact_match"}


def test_what_is_not_known_is_not_written(tmp_path):
    readings = {"exact_match": Reading(**READING)}
    summary = Summary(**SCORED, cut=1, **readings)
    write_scores(tmp_path, [], summary)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found == {
        **SCORED,
        "cut": 1,
        "exact_match": {**READING, "undecided": 0},
    }
    assert read_summary(tmp_path) == summary and summary.readings == readings


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"accuracy": "half"}, 'accuracy: input should be a valid number, got "half"'),
        ({"exact_match": {**READING, "examples": None}}, "exact_match.examples: "),
        ({"primary": "other"}, "primary=other is not among exact_match"),
        ({"own": 3}, "own: input should be an object, got 3"),
    ],
)
def test_a_damaged_summary_is_named(tmp_path, change, expected):
    (tmp_path / "summary.json").write_text(
        json.dumps({**SCORED, "exact_match": READING, **change})
    )
    with pytest.raises(ValueError) as error:
        read_summary(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/summary.json: {expected}")
    assert "\n" not in str(error.value)
