"""``checked``: typed values, and errors of one line that name place, field and value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from erjepa.utils.checked import checked


@dataclass(frozen=True)
class Score:
    name: str
    share: float | None
    counts: Sequence[int] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


def test_values_become_typed():
    read = checked(
        Score, {"name": "a", "share": 1, "counts": [2], "unknown": 0}, "f.json:1"
    )
    assert read == Score("a", 1.0, [2])
    assert isinstance(read.share, float)
    assert checked(str, "half \ud83d of one", "f:1") == "half ? of one"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"share": 1.0}, "f:1: name: field required"),
        (
            {"name": "a", "share": "1"},
            'f:1: share: input should be a valid number, got "1"',
        ),
        (
            {"name": "a", "share": None, "counts": [1, True]},
            "f:1: counts[1]: input should be a valid integer, got true",
        ),
        (
            {"name": "a", "share": None, "metrics": {"loss": "x" * 100}},
            f'f:1: metrics.loss: input should be a valid number, got "{"x" * 79}...',
        ),
        ([], "f:1: input should be an object, got []"),
        (
            {"name": 3, "share": "x"},
            "f:1: name: input should be a valid string, got 3 (and 1 more errors)",
        ),
    ],
)
def test_an_error_is_one_line(value, message):
    with pytest.raises(ValueError) as error:
        checked(Score, value, "f:1")
    assert str(error.value) == message
