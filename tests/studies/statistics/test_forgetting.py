"""Forgetting and transfer, compared with values worked by hand."""

import math

from erjepa.studies.statistics.forgetting import continual_measures

# Three tasks. The first is best after the second stage, not after its own.
ACCURACY = [
    [60.0, 12.0, 3.0],
    [70.0, 80.0, 9.0],
    [40.0, 50.0, 90.0],
]


def test_by_hand():
    found = continual_measures(ACCURACY, untrained=[1.0, 2.0, 4.0])
    assert found.forgetting == ((70 - 40) + (80 - 50)) / 2
    assert found.backward_transfer == ((40 - 60) + (50 - 80)) / 2
    assert found.forward_transfer == ((12 - 2) + (9 - 4)) / 2


def test_stages_that_are_scored_on_their_own_task():
    """The best accuracy on a task is not known then."""
    nan = math.nan
    found = continual_measures([[60, nan, nan], [nan, 80, nan], [40, 50, 90]])
    assert math.isnan(found.forgetting)
    assert found.backward_transfer == ((40 - 60) + (50 - 80)) / 2


def test_without_an_untrained_model_nothing_is_said_of_forward_transfer():
    assert continual_measures(ACCURACY).forward_transfer is None


def test_what_is_gained_back_is_no_forgetting():
    """Forgetting below zero, backward transfer above."""
    found = continual_measures([[50, 0], [62, 80]])
    assert (found.forgetting, found.backward_transfer) == (-12, 12)
