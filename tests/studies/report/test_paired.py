"""Paired tests, compared with scipy on results.jsonl."""

import statistics

import pytest
from scipy import stats

from erjepa.studies.report.results import Results, Unavailable
from tests.harness.fake_output import write_output
from tests.harness.report_parts import (
    BUDGETS,
    SEEDS,
    accuracies,
    assert_spread,
    build,
    make,
)


def test_stored_pairs_against_the_current_batch(results, rows):
    _, (table,) = build(
        "significance", results, None, ["ER-JEPA uniform"], reference="current batch"
    )
    mine, theirs = (
        accuracies(rows, method, BUDGETS[-1])
        for method in ("ER-JEPA uniform", "current batch")
    )
    differences = [a - b for a, b in zip(mine, theirs, strict=True)]
    (row,) = table.rows
    assert row[:3] == ["synth", "ER-JEPA uniform", "current batch"]
    assert_spread(row[3], differences)
    assert row[4:7] == [sum(d > 0 for d in differences), len(SEEDS), "two-sided"]


def test_significance(results, rows):
    _, (table,) = build("significance", results, None, ["SFT", "ER-JEPA content"])
    # LLM-JEPA is tested against SFT, not the other way round: that is what is claimed.
    pairs = [("LLM-JEPA", "SFT"), ("ER-JEPA content", "LLM-JEPA")]
    for row, (method, reference) in zip(table.rows, pairs, strict=True):
        mine, theirs = (accuracies(rows, m, BUDGETS[-1]) for m in (method, reference))
        differences = [a - b for a, b in zip(mine, theirs, strict=True)]
        assert row[:3] == ["synth", method, reference]
        assert_spread(
            table.column("Difference (pp)")[table.rows.index(row)], differences
        )
        assert row[4:7] == [sum(d > 0 for d in differences), len(SEEDS), "one-tailed"]
        error = statistics.stdev(differences) / len(SEEDS) ** 0.5
        assert row[7] == pytest.approx(statistics.mean(differences) / error)
        greater = stats.ttest_1samp(differences, 0, alternative="greater")
        assert row[8] == pytest.approx(greater.pvalue)
        # All differences are positive: one of eight sign patterns.
        assert row[4] == 3 and row[9] == 1 / 8
        shown = zip(SEEDS, differences, strict=True)
        assert row[10] == ", ".join(f"{s}: {100 * x:.2f}" for s, x in sorted(shown))


def test_a_dash_is_explained_where_there_is_one(tmp_path):
    def caption(**config):
        folder = tmp_path / f"out_{len(config['seeds'])}"
        _, (table,) = build(
            "significance", Results(write_output(folder, **config)), None
        )
        return table.caption

    seeds = tuple(range(1, 18))  # too many for the sign-flip test
    methods = {"a": {"replay.weight": 0}, "b": {}}
    assert "A dash:" in caption(seeds=seeds, methods=methods)
    assert "A dash:" not in caption(seeds=seeds[:7], methods=methods)


def test_what_is_not_claimed_is_tested_two_sided(results):
    methods = ["current batch", "ER-JEPA uniform", "LLM-JEPA"]
    _, (table,) = build(
        "significance", results, None, methods, reference="ER-JEPA content"
    )
    assert [(row[1], row[2], row[6]) for row in table.rows] == [
        ("current batch", "ER-JEPA content", "two-sided"),
        ("ER-JEPA uniform", "ER-JEPA content", "two-sided"),
        ("ER-JEPA content", "LLM-JEPA", "one-tailed"),
    ]
    _, (both,) = build(
        "significance", results, None, ["ER-JEPA content"], reference="current batch"
    )
    assert both.rows[0][3].mean == -table.rows[0][3].mean
    assert both.rows[0][8] == table.rows[0][8]


def test_significance_needs_a_reference(tmp_path):
    methods = {"sparse": {}, "dense": {"replay.address": "dense"}}
    output = write_output(tmp_path / "out", methods, seeds=(1, 2), examples=9)
    with pytest.raises(Unavailable, match="name a `reference`"):
        make("significance", Results(output))
    _, (table,) = build("significance", Results(output), reference="dense")
    assert table.column(1) == ["sparse"]
