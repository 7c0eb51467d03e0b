"""Paired tests of two methods over seeds."""

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

FEWEST = 6  # seeds for the bootstrap; with fewer its interval is about their range
MOST_FLIPPED = 16  # seeds for the sign-flip test, which visits 2 ** seeds sign patterns


class PairedTest(NamedTuple):
    """Paired tests of a method against a reference method, over the seeds that both have."""

    seeds: int  # number of shared seeds
    won: int  # number of seeds at which the method's value is the greater one
    difference: float  # mean of method - reference
    sd: float  # sample standard deviation of the differences
    t: float | None  # statistic of the paired t-test; None if all differences are equal
    p_t: float | None  # p-value of the t-test
    differences: dict[int, float]  # seed to method - reference, ascending by seed
    p_signs: float | None  # p-value of the exact sign-flip test; None above 16 seeds
    p_bootstrap: float | None  # None below six seeds
    # 95% bootstrap interval of the mean difference; None below six seeds
    interval: tuple[float, float] | None


def paired_test(
    values: Mapping[int, float] | pd.Series,
    reference: Mapping[int, float] | pd.Series,
    two_sided: bool = False,
    resamples: int = 10_000,
) -> PairedTest:
    """Test a method against a reference, paired by the seeds that both have, two or more.

    The t-test assumes that the differences are independent draws from one normal distribution.
    The exact sign-flip test assumes that each difference is equally likely with either sign; its
    p-value is the fraction of all sign patterns whose mean is at least the observed one
    (two-sided: at least as far from zero). The bootstrap resamples the n differences with
    replacement; its p-value is the fraction of resamples with a mean of at most zero, where the
    observed sample counts as one of them (two-sided: twice the smaller of that and the fraction
    with a mean of at least zero). No p-value is corrected for the number of tests, and none
    covers the choice of test examples.

    Args:
        values, reference: value of the method, and of the reference, by seed.
        two_sided: whether the alternative is a difference of either sign; otherwise it is that
            the method's mean is greater.
        resamples: number of bootstrap resamples, which are drawn alike at each call.
    """
    # Rounding gives resamples that cancel a mean of exactly zero.
    both = (pd.Series(values) - pd.Series(reference)).dropna().sort_index()
    differences, n = both.round(12).to_numpy(), len(both)
    alternative = "two-sided" if two_sided else "greater"
    t = p_t = p_signs = p_bootstrap = interval = None
    if not np.allclose(differences, differences[0], rtol=0, atol=1e-10):
        t, p_t = map(float, stats.ttest_1samp(differences, 0, alternative=alternative))
    if n <= MOST_FLIPPED:
        sums = (np.array(list(product((1, -1), repeat=n))) @ differences).round(9)
        observed = differences.sum().round(9)
        as_large = abs(sums) >= abs(observed) if two_sided else sums >= observed
        p_signs = float(as_large.mean())
    if n >= FEWEST:
        draws = np.random.default_rng(0).choice(differences, (resamples, n))
        means = draws.mean(axis=1).round(12)
        p_bootstrap = float(((means <= 0).sum() + 1) / (resamples + 1))
        if two_sided:
            opposite = float(((means >= 0).sum() + 1) / (resamples + 1))
            p_bootstrap = min(1.0, 2 * min(p_bootstrap, opposite))
        low, high = np.quantile(means, (0.025, 0.975)).tolist()
        interval = low, high
    return PairedTest(
        seeds=n,
        won=int((differences > 0).sum()),
        difference=float(differences.mean()),
        sd=float(differences.std(ddof=1)),
        t=t,
        p_t=p_t,
        differences=dict(zip(both.index, differences.tolist(), strict=True)),
        p_signs=p_signs,
        p_bootstrap=p_bootstrap,
        interval=interval,
    )
