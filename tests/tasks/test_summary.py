"""Fractions, counts and intervals of a summary."""

import re

import numpy as np
import pytest

from erjepa.tasks.summary import (
    by_origin,
    change,
    reading_without,
    seen_in,
    summarize,
    wilson_interval,
)
from erjepa.utils.summary import Reading
from tests.harness.data import real_texts


@pytest.mark.parametrize(
    ("right", "examples", "low", "high"),
    [
        # Newcombe 1998, "Two-sided confidence intervals for the single proportion", Table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # The mirror images of two of them.
        (20, 20, 1 - 0.1611, 1.0),
        (28, 29, 1 - 0.1718, 1 - 0.0061),
    ],
)
def test_wilson_against_published_values(right, examples, low, high):
    assert wilson_interval(right, examples) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("examples", [1, 7, 1319, 1769])
def test_intervals_hold_the_share_within_0_and_1(examples):
    for right in {0, 1, examples // 2, examples - 1, examples}:
        low, high = wilson_interval(right, examples)
        assert 0 <= low <= right / examples <= high <= 1 and low < high


def test_undecided_counts_as_not_right():
    verdicts = [
        {"first": True, "second": True},
        {"first": None, "second": True},
        {"first": False, "second": None},
        {"first": None, "second": False},
    ]
    summary = summarize([{}] * 4, verdicts, "second")
    assert list(summary) == ["first", "second"]
    for name, right, undecided in (("first", 1, 2), ("second", 2, 1)):
        assert summary[name] == Reading(
            share=right / 4,
            right=right,
            undecided=undecided,
            examples=4,
            interval=wilson_interval(right, 4),
        )


def test_what_cannot_be_summarized():
    with pytest.raises(ValueError, match="0 predictions and 0 verdicts"):
        summarize([], [], "first")
    with pytest.raises(ValueError, match="2 predictions and 1 verdicts"):
        summarize([{}, {}], [{"first": True}], "first")
    with pytest.raises(ValueError, match="primary=other is not among first"):
        summarize([{}], [{"first": True}], "other")


@pytest.mark.parametrize("value", [1, 0.9, np.bool_(True), re.match("a", "a"), "yes"])
def test_a_verdict_is_a_bool_or_none(value):
    error = (
        "prediction 2: the verdict right must be True, False or None .*"
        + re.escape(f"got {value!r} of type {type(value).__name__}")
    )
    with pytest.raises(ValueError, match=error):
        summarize([{}, {}], [{"right": True}, {"right": value}], "right")


def test_all_predictions_have_the_same_metrics():
    verdicts = [{"right": True, "close": True}, {"right": True}]
    with pytest.raises(
        ValueError, match=r"prediction 2 has verdicts on \['right'\], the"
    ):
        summarize([{}, {}], verdicts, "right")


def test_origins_are_counted_on_their_own():
    origins = ["few", "many", "few", None, "many", "many"]
    right = [True, False, None, True, True, True]
    predictions = [{} if name is None else {"origin": name} for name in origins]
    verdicts = [{"loose": True, "strict": verdict} for verdict in right]
    few, many = by_origin(predictions, verdicts, "strict")
    assert (few.origin, few.share, few.undecided) == ("few", 1 / 2, 1)
    assert (many.origin, many.right, many.examples) == ("many", 2, 3)
    assert many.interval == wilson_interval(2, 3)
    assert by_origin([{}, {"origin": 3}], verdicts[:2], "strict") == []


def test_a_change_by_hand():
    """Ten examples; p12 = 3/12, p21 = 2/12, and 1.96 sqrt((5/12 - 1/144) / 12)."""
    before = [True] * 5 + [True] + [False] * 2 + [False] * 2
    now = [True] * 5 + [False] + [True] * 2 + [False] * 2
    found = change("first", before, now)
    assert found.model_dump(exclude={"interval"}) == {
        **{"checkpoint": "first", "examples": 10, "accuracy": 0.6, "difference": 0.1},
        **{"kept": 5, "gained": 2, "lost": 1},
    }
    assert found.interval == pytest.approx((1 / 12 - 0.3622, 1 / 12 + 0.3622), abs=1e-4)
    assert change("second", now, before).difference == -found.difference
    assert change("first", [True], [False]).interval[0] == -1


def test_the_interval_of_a_change_holds_the_difference_95_times_of_100():
    rng, held = np.random.default_rng(0), 0
    for _ in range(1000):
        before = rng.random(50) < 0.8
        now = np.where(before, rng.random(50) < 0.9, rng.random(50) < 0.2)
        low, high = change("first", before.tolist(), now.tolist()).interval
        held += low <= 0.8 * 0.9 + 0.2 * 0.2 - 0.8 <= high
    assert 930 <= held <= 985


def test_what_occurs_in_training_is_seen():
    train = [("how  many", "a\nb"), ("who", "c")]
    test = {3: ("how many ", "a b"), 5: ("who", "a b"), 7: ("who", "d")}
    assert seen_in(train, test) == ({3}, {3, 5})
    assert seen_in([], test) == (set(), set())
    scored = [{"id": i, "right": i != 7} for i in test]
    assert reading_without(scored, {3}, "right").right == 1
    assert reading_without(scored, {3}, "right").examples == 2
    assert reading_without(scored, set(test), "right") is None


def test_how_many_pairs_of_synth_are_seen():
    train, test = (
        real_texts(f"nl_rx/synth_{split}.jsonl") for split in ("train", "test")
    )
    seen = seen_in(train, dict(enumerate(test)))
    assert (len(test), len(seen.pairs), len(seen.targets)) == (2000, 39, 111)
