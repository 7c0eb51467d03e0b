"""What becomes of predictions from checkpoint to checkpoint."""

from itertools import product

from erjepa.analysis.dynamics import (
    Drops,
    Transition,
    drops,
    history_order,
    total_transition,
    transitions,
)

# Checkpoints x examples.
CORRECT = [
    [0, 0, 0, 1, 1, 1],
    [1, 0, 0, 1, 0, 1],
    [1, 1, 1, 1, 1, 1],
    [1, 1, 1, 0, 1, 1],
]


def test_transitions():
    first, second, third = transitions(CORRECT)
    assert first == Transition(wrong=3, corrected=1, right=3, lost=1)
    assert second == Transition(wrong=3, corrected=3, right=3, lost=0)
    assert third == Transition(wrong=0, corrected=0, right=6, lost=1)
    assert first.correction_rate == first.loss_rate == 1 / 3
    assert third.correction_rate is None and third.loss_rate == 1 / 6
    assert Transition(1, 1, 0, 0).loss_rate is None
    assert total_transition([first, second, third]) == Transition(6, 4, 12, 2)


def test_a_single_checkpoint_has_no_transition():
    assert transitions(CORRECT[:1]) == []


def test_history_order_against_sorting_histories():
    histories = [*product((0, 1), repeat=3)] * 2
    by_checkpoint = list(zip(*histories, strict=True))
    expected = sorted(
        range(len(histories)), key=lambda i: [-right for right in histories[i][::-1]]
    )
    assert history_order(by_checkpoint) == expected


def test_drops():
    assert drops([0.25, 0.5, 0.375, 0.75, 0.5]) == Drops(2, 0.25, 0.25)
    assert drops([0.5, 0.25, 0.125, 0.375]) == Drops(2, 0.25, 0.125)
    assert drops([0.25, 0.25, 0.5]) == Drops(0, 0.0, 0.0)  # as much is no decline
    assert drops([0.5]) == Drops(0, 0.0, 0.0)
