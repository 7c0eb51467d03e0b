"""The section of paired tests, and a table of paired tests for other sections."""

from collections.abc import Mapping, Sequence

import pandas as pd

from erjepa.studies.report.results import Results, Unavailable
from erjepa.studies.report.sections import Method, Parts, section
from erjepa.studies.report.table import SD, Table
from erjepa.studies.statistics.paired import PairedTest, paired_test

# The paper's claims (better, other) on accuracy, tested one-tailed; all else is two-sided.
CLAIMS = (("ER-JEPA", "LLM-JEPA"), ("LLM-JEPA", "SFT"))
_CAPTION = (
    "Differences are in percentage points, over the seeds that both methods have. Seeds won: "
    "seeds with a difference above zero. P-values are of a paired t-test and of an exact "
    "sign-flip test over seeds: one-tailed where the paper claims a direction ({}), otherwise "
    "two-sided, and not corrected for the number of tests.{}{}"
)
_BOOTSTRAP = (
    " With six or more seeds also of a paired bootstrap, with its 95% interval."
)
_DASH = (
    " A dash: all differences are equal, or there are too many seeds for the sign-flip test "
    "(more than 16) or too few for the bootstrap."
)


@section("Paired tests", by_default=True)
def significance(
    results: Results, methods: list[str], reference: Method | None = None
) -> Parts:
    """Paired tests of methods against ``reference``, by default LLM-JEPA."""
    role = results.role
    if reference is None and "LLM-JEPA" not in map(role, results.methods):
        raise Unavailable("no method of the experiment is LLM-JEPA; name a `reference`")
    against = results.first("LLM-JEPA", reference)
    pairs = [
        # A claimed pair is tested in the direction of the claim.
        (against, m) if (role(against), role(m)) in CLAIMS else (m, against)
        for m in methods
        if m != against
    ]
    ends = results.final(None, results.methods).set_index(["method", "seed"])
    values = dict(iter(ends.groupby("dataset", sort=False).accuracy))
    yield paired_table(
        results, "Accuracy of a method minus that of another.", values, pairs
    )


def paired_table(
    results: Results,
    caption: str,
    values: Mapping[str, pd.Series],
    pairs: Sequence[tuple[str, str]],
    claims: Sequence[tuple[str, str]] = CLAIMS,
    name: str = "",
) -> Table:
    """Return a table of paired tests over seeds, with a row for each dataset and pair of methods.

    Args:
        values: dataset to the compared values by method and seed, in percent; greater is better.
        pairs: each method and the method that it is compared with.
        claims: pairs of roles that are tested one-tailed.
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
                    **{"t": test.t, "p (t-test)": test.p_t, "p (signs)": test.p_signs},
                    **_details(test),
                }
            )
    if not rows:
        raise Unavailable("no two of these methods share two finished seeds")
    directions = ", ".join(f"{one} over {other}" for one, other in claims)
    digits = dict.fromkeys(("p (t-test)", "p (signs)", "p (bootstrap)"), 4)
    frame = pd.DataFrame(rows)
    bootstrap = _BOOTSTRAP if "p (bootstrap)" in frame else ""
    dash = _DASH if frame.isna().to_numpy().any() else ""
    caption = f"{caption} {_CAPTION.format(directions, bootstrap, dash)}"
    return Table(caption, frame, digits, name=name)


def _details(test: PairedTest) -> dict[str, object]:
    """Return the columns of the bootstrap, or with too few seeds for it, the differences."""
    if test.interval is None:
        shown = ", ".join(f"{seed}: {x:.2f}" for seed, x in test.differences.items())
        return {"Difference of each seed (pp)": shown}
    interval = "{:.2f} to {:.2f}".format(*test.interval)
    return {"p (bootstrap)": test.p_bootstrap, "Interval (pp)": interval}
