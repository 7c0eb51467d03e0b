"""The section of paired tests, and the table that other sections make of theirs."""

from collections.abc import Iterator, Mapping, Sequence

from erjepa.analysis.statistics import paired_test
from erjepa.report.results import Results, Unavailable
from erjepa.report.select import (
    accuracies,
    find_method,
    methods_of,
    role,
    scored_datasets,
)
from erjepa.report.table import Column, Table

# What the paper claims of accuracy: the first is better. All else is tested two-sided.
CLAIMS = (("ER-JEPA", "LLM-JEPA"), ("LLM-JEPA", "SFT"))
_CAPTION = (
    "Differences in percentage points over the seeds that both have; seeds won: those in which "
    "the difference is above zero. P-values of a paired t-test over seeds and of a paired "
    "bootstrap of the seeds, with its 95% interval: one-tailed where the paper claims the "
    "direction ({}), else two-sided. No correction for the number of tests; a dash: all "
    "differences are equal."
)


def significance(
    results: Results,
    methods: Sequence[str] | None = None,
    reference: str | None = None,
) -> Iterator[Table]:
    """Paired tests of methods against ``reference``, by default LLM-JEPA."""
    if reference is None and all(
        role(results, method) != "LLM-JEPA" for method in results.methods
    ):
        raise Unavailable("no method of the experiment is LLM-JEPA; name a `reference`")
    against = find_method(results, "LLM-JEPA", reference)
    pairs = []
    for method in methods_of(results, methods):
        if claimed(results, against, method):
            pairs.append((against, method))
        elif method != against:
            pairs.append((method, against))
    values = {
        name: {m: accuracies(results.final(name, m)) for m in results.methods}
        for name in scored_datasets(results)
    }
    caption = "Accuracy of a method less that of another."
    yield paired_table(results, "significance", caption, values, pairs)


def claimed(
    results: Results,
    method: str,
    reference: str,
    claims: Sequence[tuple[str, str]] = CLAIMS,
) -> bool:
    """Whether the paper claims that ``method`` is better than ``reference``."""
    return (role(results, method), role(results, reference)) in claims


def paired_table(
    results: Results,
    name: str,
    caption: str,
    values: Mapping[str, Mapping[str, Mapping[int, float]]],
    pairs: Sequence[tuple[str, str]],
    claims: Sequence[tuple[str, str]] = CLAIMS,
) -> Table:
    """Paired tests over seeds.

    Args:
        results (Results): of the experiment.
        name (str): of the table.
        caption (str): what is compared.
        values (Mapping[str, Mapping[str, Mapping[int, float]]]): dataset to method to seed
            to what is compared; the greater the better.
        pairs (Sequence[tuple[str, str]]): methods, and what each is compared with.
        claims (Sequence[tuple[str, str]]): roles of pairs that are tested one-tailed.

    Returns:
        Table: a row a dataset and pair.

    Raises:
        Unavailable: if no pair shares two seeds.
    """
    rows = []
    for dataset, by_method in values.items():
        for method, reference in pairs:
            mine, theirs = by_method[method], by_method[reference]
            if len(mine.keys() & theirs.keys()) < 2:
                continue
            two_sided = not claimed(results, method, reference, claims)
            test = paired_test(mine, theirs, two_sided)
            low, high = (f"{100 * end:.2f}" for end in test.interval)
            rows.append(
                [
                    *(dataset, method, reference, test.difference, test.won),
                    *(len(test.seeds), "two-sided" if two_sided else "one-tailed"),
                    *(test.t, test.p_t, test.p_bootstrap, f"{low} to {high}"),
                ]
            )
    if not rows:
        raise Unavailable("no two of these methods share two finished seeds")
    directions = ", ".join(f"{one} over {other}" for one, other in claims)
    return Table(
        name,
        f"{caption} {_CAPTION.format(directions)}",
        [
            Column("Dataset"),
            Column("Method"),
            Column("Against"),
            Column("Difference (pp)", scale=100),
            Column("Seeds won"),
            Column("Seeds"),
            Column("Test"),
            Column("t"),
            Column("p (t-test)", digits=4),
            Column("p (bootstrap)", digits=4),
            Column("Interval (pp)"),
        ],
        rows,
    )
