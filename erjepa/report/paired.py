"""The section of paired tests, and the table that other sections make of theirs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import Parts, section
from erjepa.report.table import SD, Table

# What the paper claims of accuracy: the first is better. All else is tested two-sided.
CLAIMS = (("ER-JEPA", "LLM-JEPA"), ("LLM-JEPA", "SFT"))
_CAPTION = (
    "Differences in percentage points over the seeds that both have; seeds won: those in which "
    "the difference is above zero. P-values of a paired t-test over seeds and of a paired "
    "bootstrap of the seeds, with its 95% interval: one-tailed where the paper claims the "
    "direction ({}), else two-sided. No correction for the number of tests; a dash: all "
    "differences are equal."
)


class PairedTest(NamedTuple):
    """How one method differs from another, over the seeds that both have."""

    seeds: int  # that both have
    won: int  # of these: the method's value is the greater one
    difference: float  # mean of the method's value less the other's
    sd: float  # sample standard deviation of these differences
    t: float | None  # of the paired t-test; None where it is undefined
    p_t: float | None  # its p-value
    p_bootstrap: float
    interval: tuple[float, float]  # the bootstrap's, 95% of the mean difference


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
        values, reference (Mapping[int, float] | pd.Series): seed to value of the method, and
            of the other; only seeds that both have count.
        two_sided (bool): whether p-values are for a difference of either sign; otherwise
            for the method's mean being the greater one.
        resamples, seed (int): draws of the bootstrap, and the seed of its generator.

    Returns:
        PairedTest: in the unit of the values; ValueError if they share fewer than two seeds.
    """
    # Rounded, so that draws that cancel have a mean of zero.
    both = (pd.Series(values) - pd.Series(reference)).dropna().sort_index()
    differences, n = both.round(12).to_numpy(), len(both)
    if n < 2:
        raise ValueError(f"a paired test needs two seeds, these share {n}")
    t = p_t = None
    if not np.allclose(differences, differences[0], rtol=0, atol=1e-10):
        alternative = "two-sided" if two_sided else "greater"
        t, p_t = map(float, stats.ttest_1samp(differences, 0, alternative=alternative))
    draws = np.random.default_rng(seed).choice(differences, (resamples, n))
    means = draws.mean(axis=1).round(12)
    above, below = (
        (int(is_beyond.sum()) + 1) / (resamples + 1)
        for is_beyond in (means <= 0, means >= 0)
    )
    p_bootstrap = min(1.0, 2 * min(above, below)) if two_sided else above
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    won, mean, sd = (differences > 0).sum(), differences.mean(), differences.std(ddof=1)
    return PairedTest(
        n, int(won), float(mean), float(sd), t, p_t, p_bootstrap, (low, high)
    )


@section("Paired tests")
def significance(
    results: Results, methods: list[str], reference: str | None = None
) -> Parts:
    """Paired tests of methods against ``reference``, by default LLM-JEPA."""
    role = results.role
    if reference is None and "LLM-JEPA" not in map(role, results.methods):
        raise Unavailable("no method of the experiment is LLM-JEPA; name a `reference`")
    against = results.first("LLM-JEPA", reference)
    pairs = [
        # What is claimed is tested, not its reverse.
        (against, m) if (role(against), role(m)) in CLAIMS else (m, against)
        for m in methods
        if m != against
    ]
    ends = results.final(None, results.methods).set_index(["method", "seed"])
    values = dict(iter(ends.groupby("dataset", sort=False).accuracy))
    yield paired_table(
        results, "Accuracy of a method less that of another.", values, pairs
    )


def paired_table(
    results: Results,
    caption: str,
    values: Mapping[str, pd.Series],
    pairs: Sequence[tuple[str, str]],
    claims: Sequence[tuple[str, str]] = CLAIMS,
    name: str = "",
) -> Table:
    """Paired tests over seeds.

    Args:
        results (Results): of the experiment.
        caption (str): what is compared.
        values (Mapping[str, pd.Series]): dataset to what is compared, in percent, the greater
            the better, by method and seed.
        pairs (Sequence[tuple[str, str]]): methods, and what each is compared with.
        claims (Sequence[tuple[str, str]]): roles of pairs that are tested one-tailed.
        name (str): of the table within its section.

    Returns:
        Table: a row a dataset and pair; Unavailable if no pair shares two seeds.
    """
    rows = []
    for dataset, series in values.items():
        by_method = series.unstack(level=0).reindex(columns=results.methods)
        for method, other in pairs:
            if len(by_method[[method, other]].dropna()) < 2:
                continue
            is_claimed = (results.role(method), results.role(other)) in claims
            test = paired_test(by_method[method], by_method[other], not is_claimed)
            rows.append(
                {
                    **{"Dataset": dataset, "Method": method, "Against": other},
                    "Difference (pp)": test.difference,
                    f"Difference (pp){SD}": test.sd,
                    **{"Seeds won": test.won, "Seeds": test.seeds},
                    "Test": "one-tailed" if is_claimed else "two-sided",
                    **{"t": test.t, "p (t-test)": test.p_t},
                    "p (bootstrap)": test.p_bootstrap,
                    "Interval (pp)": "{:.2f} to {:.2f}".format(*test.interval),
                }
            )
    if not rows:
        raise Unavailable("no two of these methods share two finished seeds")
    directions = ", ".join(f"{one} over {other}" for one, other in claims)
    digits = {"p (t-test)": 4, "p (bootstrap)": 4}
    caption = f"{caption} {_CAPTION.format(directions)}"
    return Table(caption, pd.DataFrame(rows), digits, name=name)
