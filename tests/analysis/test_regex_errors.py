"""Categories of errors, corrections and outcomes; the paper's tables recomputed."""

import pytest

from erjepa.analysis.regex_errors import (
    CORRECT,
    ERROR_CATEGORIES,
    LENGTH_CATEGORIES,
    Correction,
    corrections,
    is_right_beginning,
    outcome_matrix,
    prediction_category,
    summarize_corrections,
)

OVER, UNDER, SAME, SYNTAX = ERROR_CATEGORIES

# Table "Correction counts and rates for each seed": errors, corrected by LLM-JEPA, by ER-JEPA.
BY_SEED = {
    OVER: [
        (901, 448, 807),
        (697, 435, 583),
        (705, 375, 608),
        (591, 344, 455),
        (698, 292, 601),
    ],
    UNDER: [(1, 0, 1), (5, 1, 2), (3, 0, 1), (2, 1, 2), (2, 1, 0)],
    SAME: [
        (161, 29, 36),
        (156, 31, 38),
        (173, 41, 46),
        (184, 41, 53),
        (168, 32, 39),
    ],
}
# Table "ER-JEPA achieves higher mean correction rates": errors, corrected, rate (%).
PRINTED = {
    (OVER, "LLM-JEPA"): ("718.4 ± 112.5", "378.8 ± 64.6", "53.07 ± 7.92"),
    (OVER, "ER-JEPA"): ("718.4 ± 112.5", "610.8 ± 126.1", "84.51 ± 4.70"),
    (UNDER, "LLM-JEPA"): ("2.6 ± 1.5", "0.6 ± 0.5", "24.00 ± 25.10"),
    (UNDER, "ER-JEPA"): ("2.6 ± 1.5", "1.2 ± 0.8", "54.67 ± 44.07"),
    (SAME, "LLM-JEPA"): ("168.4 ± 10.9", "34.8 ± 5.8", "20.58 ± 2.35"),
    (SAME, "ER-JEPA"): ("168.4 ± 10.9", "42.4 ± 7.0", "25.07 ± 2.62"),
}


@pytest.mark.parametrize(("category", "method"), PRINTED)
def test_the_papers_summary_recomputes_from_its_seeds(category, method):
    column = ("LLM-JEPA", "ER-JEPA").index(method)
    counts = [Correction(row[0], row[1 + column]) for row in BY_SEED[category]]
    errors, corrected, rate = summarize_corrections(counts)
    assert (
        f"{errors.mean:.1f} ± {errors.sd:.1f}",
        f"{corrected.mean:.1f} ± {corrected.sd:.1f}",
        f"{100 * rate.mean:.2f} ± {100 * rate.sd:.2f}",
    ) == PRINTED[category, method]


@pytest.mark.parametrize(
    ("target", "output", "category"),
    [
        ("(dog)", "(dog)", CORRECT),
        ("(dog)", " (dog)\n", CORRECT),
        (".*dog.*", ".*dog.*.*", OVER),
        (".*dog.*", "dog.*", UNDER),
        (".*dog.*", ".*truck.*", SAME),  # a word is one token, however long
        (".*[0-9].*", ".*[AEIOUaeiou].*", SAME),
        ("(dog){2,}", "(dog){12,}", SAME),
        ("(a)&(b)", "(b)&(a)", SAME),  # the same lines, but not the same text
        (".*dog.*", ".*dog.*)", SYNTAX),  # longer, but no regex
        (".*dog.*", "(", SYNTAX),
        ("(dog)", "", SYNTAX),
        ("(dog)", "*", SYNTAX),
        ("(dog)", "(" * 5000, SYNTAX),
        ("(dog)", "(" * 5000 + "a" + ")" * 5000, OVER),
    ],
)
def test_categories(target, output, category):
    assert prediction_category(target, output) == category


def test_corrections_count_only_the_baselines_errors():
    baseline = [OVER, OVER, SAME, CORRECT, SYNTAX, OVER]
    other = [CORRECT, SAME, CORRECT, CORRECT, UNDER, CORRECT]
    found = corrections(baseline, other)
    assert found == {
        OVER: Correction(3, 2),
        UNDER: Correction(0, 0),
        SAME: Correction(1, 1),
        SYNTAX: Correction(1, 0),
    }
    assert found[OVER].rate == pytest.approx(2 / 3) and found[UNDER].rate is None
    with pytest.raises(ValueError):
        corrections(baseline, other[:-1])


def test_a_seed_without_errors_has_no_rate():
    errors, corrected, rate = summarize_corrections(
        [Correction(0, 0), Correction(4, 1), Correction(2, 1)]
    )
    assert (errors.mean, corrected.mean) == (2, pytest.approx(2 / 3))
    assert (rate.mean, rate.count) == (0.375, 2)
    assert summarize_corrections([Correction(0, 0)])[2] is None


def test_outcome_matrix():
    matrix = outcome_matrix(
        [OVER, OVER, CORRECT, SYNTAX, OVER], [CORRECT, OVER, OVER, CORRECT, CORRECT]
    )
    assert matrix[OVER] == {CORRECT: 2, OVER: 1, UNDER: 0, SAME: 0, SYNTAX: 0}
    assert matrix[SYNTAX][CORRECT] == 1
    assert sum(sum(row.values()) for row in matrix.values()) == 4
    assert set(matrix) == {*LENGTH_CATEGORIES, SYNTAX}


def test_right_beginnings():
    target = ".*dog.*"
    assert is_right_beginning(target, ".*dog.*.*")
    assert is_right_beginning(f" {target}\n", f"{target} and more")
    assert not is_right_beginning(target, f" {target}\n")  # it is right
    assert not is_right_beginning(target, ".*dog")
    assert not is_right_beginning(target, f"~({target})")
