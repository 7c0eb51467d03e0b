"""Paired tests, compared with published values and values worked by hand."""

import pytest

from erjepa.studies.statistics.paired import paired_test

# Student 1908, "The probable error of a mean": extra hours of sleep under two drugs.
FIRST = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
SECOND = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)


def test_paired_t_test_on_students_data():
    test = paired_test(dict(enumerate(SECOND)), dict(enumerate(FIRST)))
    assert test.difference == pytest.approx(1.58)
    assert test.t == pytest.approx(4.0621, abs=5e-5)
    assert test.p_t == pytest.approx(0.002833 / 2, abs=5e-7)
    swapped = paired_test(dict(enumerate(FIRST)), dict(enumerate(SECOND)))
    assert swapped.p_t == pytest.approx(1 - test.p_t)


def test_two_sided_p_values():
    both = dict(enumerate(SECOND)), dict(enumerate(FIRST))
    test = paired_test(*both, two_sided=True)
    assert test.p_t == pytest.approx(0.002833, abs=1e-6)
    swapped = paired_test(*both[::-1], two_sided=True)
    assert (swapped.p_t, swapped.p_bootstrap) == (test.p_t, test.p_bootstrap)
    assert test.p_bootstrap == 2 * paired_test(*both).p_bootstrap
    none = paired_test({1: 1, 2: 0}, {1: 0, 2: 1}, two_sided=True)
    assert none.p_t == 1 and none.p_signs == 1


def test_seeds_won():
    assert paired_test({1: 3, 2: 2, 3: 1, 4: 9}, {1: 2, 2: 2, 3: 2, 5: 0}).won == 1


def test_bootstrap_tends_to_the_share_of_all_draws():
    # Differences -1, 2, 2, twice: k of six draws are -1 with the odds of B(6, 1/3), and their
    # mean is not above zero where k is 4 or more: (15 * 4 + 6 * 2 + 1) / 729.
    values = {1: 0, 2: 2, 3: 3, 4: 0, 5: 2, 6: 3}
    arguments = (values, {1: 1, 2: 0, 3: 1, 4: 1, 5: 0, 6: 1})
    test = paired_test(*arguments, resamples=200_000)
    assert test.p_bootstrap == pytest.approx(73 / 729, abs=0.003)
    assert paired_test(*arguments, resamples=200_000) == test


def test_draws_that_cancel_are_not_above_zero():
    values = {1: 0.3, 2: 0.4, 3: 0.2, 4: 0.5, 5: 0.3, 6: 0.4}
    reference = {1: 0.4, 2: 0.3, 3: 0.3, 4: 0.4, 5: 0.4, 6: 0.3}
    test = paired_test(values, reference, resamples=100_000)
    # Of six draws of either sign: 1 + 6 + 15 + 20 of 64.
    assert test.p_bootstrap == pytest.approx(42 / 64, abs=0.005)


def test_bootstrap_interval_is_of_95_percent():
    # Differences of 0 and 1, four of each: means of draws are binomial, B(8, 1/2) / 8, of
    # which 3.5% are at most 1/8, 0.4% are 0, and as many at the other end.
    better = {seed: seed % 2 for seed in range(8)}
    test = paired_test(better, dict.fromkeys(range(8), 0), resamples=20_000)
    assert test.interval == (1 / 8, 7 / 8)


def test_only_seeds_of_both_are_paired():
    test = paired_test({1: 5, 2: 7, 9: 100}, {2: 1, 1: 2, 8: -100})
    assert test.seeds == 2 and test.difference == pytest.approx(4.5)


def test_equal_differences_leave_the_t_test_undefined():
    better, worse = (dict.fromkeys(range(6), x) for x in (0.3, 0.2))
    test = paired_test(better, worse, resamples=99)
    assert test.t is None and test.p_t is None
    assert test.p_bootstrap == 1 / 100  # never less than the draws can tell


def test_few_seeds_have_their_differences_and_no_bootstrap():
    """Of all 32 sign patterns of five differences one or two have a mean at least as large."""
    values, reference = {s: s for s in range(1, 6)}, dict.fromkeys(range(1, 6), 0)
    test = paired_test(values, reference)
    assert test.p_bootstrap is None and test.interval is None
    assert test.differences == values and test.p_signs == 1 / 32
    assert paired_test(values, reference, two_sided=True).p_signs == 2 / 32
    # Of -1, 2, 3 the sums of 4 and 6 are at least as large as theirs.
    assert paired_test({1: -1, 2: 2, 3: 3}, {1: 0, 2: 0, 3: 0}).p_signs == 2 / 8
