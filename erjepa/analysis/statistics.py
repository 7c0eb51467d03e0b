"""What a few seeds say: paired tests, and area under an accuracy curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import integrate, stats


@dataclass(frozen=True)
class PairedTest:
    """How one method differs from another, over the seeds that both have.

    Args:
        seeds (int): number of those seeds.
        won (int): seeds in which the method's value is the greater one.
        difference (float): mean of the method's value less the other's.
        sd (float): sample standard deviation of these differences.
        t (float | None): statistic of the paired t-test; None where it is undefined.
        p_t (float | None): its p-value.
        p_bootstrap (float): p-value of the bootstrap.
        interval (tuple[float, float]): the bootstrap's 95% interval of the mean difference.
    """

    seeds: int
    won: int
    difference: float
    sd: float
    t: float | None
    p_t: float | None
    p_bootstrap: float
    interval: tuple[float, float]


def paired_test(
    values: Mapping[int, float] | pd.Series,
    reference: Mapping[int, float] | pd.Series,
    two_sided: bool = False,
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedTest:
    """Paired tests of a method against a reference.

    The t-test takes the differences of seeds to be independent draws from one normal
    distribution. The bootstrap drops normality: it draws as many differences as there are
    seeds, with replacement, and its p-value is the share of draws, the observed one counted
    in, whose mean is not above zero; two-sided, twice the smaller one of that and the share
    not below zero. Few seeds make few distinct draws, so with five seeds
    the bootstrap is the more optimistic of the two, and its interval is too narrow. Neither is
    corrected for the number of tests, and neither covers the choice of test examples.

    Args:
        values (Mapping[int, float] | pd.Series): seed to value of the method.
        reference (Mapping[int, float] | pd.Series): seed to value of the other.
        two_sided (bool): whether p-values are for a difference of either sign; otherwise
            for the method's mean being the greater one.
        resamples (int): draws of the bootstrap.
        seed (int): of the bootstrap's generator.

    Returns:
        PairedTest: over the seeds that both have, in the unit of the values.

    Raises:
        ValueError: if they share fewer than two seeds.
    """
    pair = [pd.Series(values), pd.Series(reference)]
    both = pd.concat(pair, axis=1, join="inner", keys=[0, 1])
    # Rounded, so that draws that cancel have a mean of zero.
    differences = both[0].sub(both[1]).sort_index().round(12).to_numpy()
    if len(differences) < 2:
        raise ValueError(
            f"a paired test needs two seeds, these share {len(differences)}"
        )
    t = p_t = None
    if not np.allclose(differences, differences[0], rtol=0, atol=1e-10):
        alternative = "two-sided" if two_sided else "greater"
        t, p_t = map(float, stats.ttest_1samp(differences, 0, alternative=alternative))
    shape = resamples, len(differences)
    draws = np.random.default_rng(seed).choice(differences, shape)
    means = draws.mean(axis=1).round(12)
    above, below = (
        (int(is_beyond.sum()) + 1) / (resamples + 1)
        for is_beyond in (means <= 0, means >= 0)
    )
    return PairedTest(
        len(differences),
        int((differences > 0).sum()),
        float(differences.mean()),
        float(differences.std(ddof=1)),
        t,
        p_t,
        min(1.0, 2 * min(above, below)) if two_sided else above,
        tuple(np.quantile(means, (0.025, 0.975)).tolist()),
    )


def normalized_auc(budgets: Sequence[float], values: Sequence[float]) -> float:
    """Area under ``values`` over ``budgets``, divided by the width of their range.

    By the trapezoid rule, which takes values to change linearly from one budget to the next.
    A method that has the same value at every budget has that value as its area. The range
    below the first budget counts for nothing.

    Args:
        budgets (Sequence[float]): increasing, in any unit.
        values (Sequence[float]): the value at each budget.

    Returns:
        float: in the unit of ``values``.

    Raises:
        ValueError: if there are fewer than two budgets, or they do not increase.
    """
    if len(budgets) != len(values) or len(budgets) < 2:
        raise ValueError(
            f"{len(budgets)} budgets and {len(values)} values: expected as many of both, "
            "and at least two"
        )
    if not np.all(np.diff(budgets) > 0):
        raise ValueError(f"budgets must increase, got {list(budgets)}")
    return float(integrate.trapezoid(values, budgets) / (budgets[-1] - budgets[0]))
