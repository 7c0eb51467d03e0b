"""The section of paired tests, and the table that other sections make of theirs."""

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from erjepa.analysis.statistics import paired_test
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import section
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


@section("Paired tests", whole=True)
def significance(
    results: Results,
    methods: Sequence[str] | None = None,
    reference: str | None = None,
) -> Iterator[Table]:
    """Paired tests of methods against ``reference``, by default LLM-JEPA."""
    if reference is None and "LLM-JEPA" not in map(results.role, results.methods):
        raise Unavailable("no method of the experiment is LLM-JEPA; name a `reference`")
    against = results.first("LLM-JEPA", reference)
    pairs = [
        # What is claimed is tested, not its reverse.
        (against, method) if _claimed(results, against, method) else (method, against)
        for method in results.named(methods)
        if method != against
    ]
    values = {}
    for dataset in results.scored_datasets():
        ends = results.of(dataset, results.methods)
        values[dataset] = ends[ends.ends].groupby(["method", "seed"]).accuracy.last()
    caption = "Accuracy of a method less that of another."
    yield paired_table(results, "significance", caption, values, pairs)


def paired_table(
    results: Results,
    name: str,
    caption: str,
    values: Mapping[str, pd.Series],
    pairs: Sequence[tuple[str, str]],
    claims: Sequence[tuple[str, str]] = CLAIMS,
) -> Table:
    """Paired tests over seeds.

    Args:
        results (Results): of the experiment.
        name (str): of the table.
        caption (str): what is compared.
        values (Mapping[str, pd.Series]): dataset to what is compared, in percent, the greater
            the better, by method and seed.
        pairs (Sequence[tuple[str, str]]): methods, and what each is compared with.
        claims (Sequence[tuple[str, str]]): roles of pairs that are tested one-tailed.

    Returns:
        Table: a row a dataset and pair.

    Raises:
        Unavailable: if no pair shares two seeds.
    """
    rows = []
    for dataset, series in values.items():
        by_method = {
            method: one.droplevel(0) for method, one in series.groupby(level=0)
        }
        for method, reference in pairs:
            mine, theirs = by_method.get(method), by_method.get(reference)
            if (
                mine is None
                or theirs is None
                or len(mine.index.intersection(theirs.index)) < 2
            ):
                continue
            two_sided = not _claimed(results, method, reference, claims)
            test = paired_test(mine, theirs, two_sided)
            low, high = test.interval
            rows.append(
                {
                    **{"Dataset": dataset, "Method": method, "Against": reference},
                    "Difference (pp)": test.difference,
                    f"Difference (pp){SD}": test.sd,
                    **{"Seeds won": test.won, "Seeds": test.seeds},
                    "Test": "two-sided" if two_sided else "one-tailed",
                    **{"t": test.t, "p (t-test)": test.p_t},
                    "p (bootstrap)": test.p_bootstrap,
                    "Interval (pp)": f"{low:.2f} to {high:.2f}",
                }
            )
    if not rows:
        raise Unavailable("no two of these methods share two finished seeds")
    directions = ", ".join(f"{one} over {other}" for one, other in claims)
    caption = f"{caption} {_CAPTION.format(directions)}"
    digits = {"p (t-test)": 4, "p (bootstrap)": 4}
    return Table(name, caption, pd.DataFrame(rows), digits)


def _claimed(
    results: Results,
    method: str,
    reference: str,
    claims: Sequence[tuple[str, str]] = CLAIMS,
) -> bool:
    """Whether the paper claims that ``method`` is better than ``reference``."""
    return (results.role(method), results.role(reference)) in claims
