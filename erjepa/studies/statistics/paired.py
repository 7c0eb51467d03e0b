"""Paired tests of two methods over seeds."""

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

FEWEST = 6  # seeds of a bootstrap: of fewer its interval is little but their range
MOST_FLIPPED = 16  # seeds whose signs are all flipped


class PairedTest(NamedTuple):
    """How one method differs from another, over the seeds that both have."""

    seeds: int  # that both have
    won: int  # of these: the method's value is the greater one
    difference: float  # mean of the method's value less the other's
    sd: float  # sample standard deviation of these differences
    t: float | None  # of the paired t-test; None where it is undefined
    p_t: float | None  # its p-value
    differences: dict[int, float]  # of each seed, ascending
    p_signs: float | None  # of the exact sign-flip test; None of more seeds than 16
    p_bootstrap: float | None  # None of fewer seeds than six
    interval: tuple[float, float] | None  # the bootstrap's, 95% of the mean difference


def paired_test(
    values: Mapping[int, float] | pd.Series,
    reference: Mapping[int, float] | pd.Series,
    two_sided: bool = False,
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedTest:
    """Paired tests of a method against a reference, over the seeds that both have.

    The t-test takes the differences of seeds to be independent draws from one normal
    distribution. The exact sign-flip test takes each difference to be as likely with the other
    sign: its p-value is the fraction of all sign patterns whose mean is at least as large, or
    two-sided as far from zero. The bootstrap draws as many differences as there are seeds, with
    replacement; its p-value is the fraction of draws, the observed one counted in, whose mean is
    not above zero; two-sided, twice the smaller one of that and the share not below zero. None
    is corrected for the number of tests, and none covers the choice of test examples.

    Args:
        values, reference: seed to value of the method, and of the other.
        two_sided: whether p-values are for a difference of either sign; otherwise for the
            method's mean being the greater one.
        resamples, seed: draws of the bootstrap, and the seed of its generator.

    Raises:
        ValueError: if they share fewer than two seeds.
    """
    # Rounded, so that draws that cancel have a mean of zero.
    both = (pd.Series(values) - pd.Series(reference)).dropna().sort_index()
    differences, n = both.round(12).to_numpy(), len(both)
    if n < 2:
        raise ValueError(f"a paired test needs two seeds, these share {n}")
    alternative = "two-sided" if two_sided else "greater"
    t = p_t = p_signs = p_bootstrap = interval = None
    if not np.allclose(differences, differences[0], rtol=0, atol=1e-10):
        t, p_t = map(float, stats.ttest_1samp(differences, 0, alternative=alternative))
    if n <= MOST_FLIPPED:
        sums = (np.array(list(product((1, -1), repeat=n))) @ differences).round(9)
        own = differences.sum().round(9)
        as_large = abs(sums) >= abs(own) if two_sided else sums >= own
        p_signs = float(as_large.mean())
    if n >= FEWEST:
        draws = np.random.default_rng(seed).choice(differences, (resamples, n))
        means = draws.mean(axis=1).round(12)
        above, below = (
            (int(is_beyond.sum()) + 1) / (resamples + 1)
            for is_beyond in (means <= 0, means >= 0)
        )
        p_bootstrap = min(1.0, 2 * min(above, below)) if two_sided else above
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
