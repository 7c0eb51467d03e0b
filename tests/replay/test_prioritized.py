"""Prioritized selection has the distribution of drawing one slot after the other."""

from collections import Counter

import pytest

from erjepa.replay.selection import prioritized
from tests.harness.histories import memory_of, request_of
from tests.reference.plain_priorities import chances_of_lists

SCORES = [0.5, 1.0, 4.0, 2.0]
DRAWS = 2000


def drawn(scores, exponent, **settings):
    memory = memory_of(*((i, 0, score) for i, score in enumerate(scores)))
    request = request_of(memory, priority_exponent=exponent, **settings)

    def draw(seed):
        request.generator.manual_seed(seed)
        return prioritized(request)

    return draw


@pytest.mark.parametrize("exponent", [0.0, 0.6, 2.0])
def test_lists_come_as_often_as_they_should(exponent):
    policy = drawn(SCORES, exponent, budget=2)
    found = Counter(tuple(policy(seed)) for seed in range(DRAWS))
    expected = chances_of_lists(SCORES, exponent, 2)
    assert found.keys() <= expected.keys()
    # Of a chi-squared with 11 degrees of freedom all but a ten-thousandth.
    apart = sum(
        (found[one] - DRAWS * chance) ** 2 / (DRAWS * chance)
        for one, chance in expected.items()
    )
    assert apart < 37.4


def test_fewer_than_the_budget_are_drawn_again():
    policy = drawn([1.0, 3.0, 9.0], 1.0, budget=5, current=[2])
    found = Counter(slot for seed in range(1000) for slot in policy(seed))
    assert sum(found.values()) == 5000 and found[2] == 0
    assert found[1] / 5000 == pytest.approx(0.75, abs=0.025)


def test_edges():
    assert drawn([1.0, 2.0], 1.0, current=[0, 1])(0) == []
    policy = drawn(SCORES, 0.6, budget=3)
    assert policy(5) == policy(5) != policy(6)
    # A score of nothing comes last, and is no error.
    zero = drawn([0.0, -1e-8, 1.0, 1.0], 0.6, budget=4)
    assert all(sorted(zero(seed)[:2]) == [2, 3] for seed in range(50))
    assert drawn(SCORES, 200.0, budget=4)(0) == [2, 3, 1, 0]
