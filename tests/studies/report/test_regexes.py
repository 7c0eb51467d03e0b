"""Sections on regexes, compared with a slow computation from the predictions."""

import json
from collections import Counter

import numpy as np
import pytest

from erjepa.studies.report.results import Results
from erjepa.studies.report.table import MARKDOWN
from erjepa.tasks.nl_rx.regex_kinds import (
    ERROR_CATEGORIES,
    length_group,
    prediction_category,
    structures,
)
from tests.harness.data import write_jsonl
from tests.harness.fake_output import MAIN_METHODS, read_rows, write_output
from tests.harness.report_parts import (
    BUDGETS,
    MAIN,
    SEEDS,
    assert_spread,
    bars,
    build,
    curves,
    make,
)


def test_stops(results, predictions):
    _, (table,) = build("stops", results, "synth", ["SFT"])
    names = table.columns[1:]
    shares = {name: [] for name in names}
    for seed in SEEDS:
        found = predictions["SFT", seed, BUDGETS[-1]]
        kinds = Counter(prediction_category(x["target"], x["output"]) for x in found)
        kinds["right beginning"] = sum(
            x["output"].startswith(x["target"]) and len(x["output"]) > len(x["target"])
            for x in found
        )
        kinds["right if it had stopped"] = kinds["correct"] + kinds["right beginning"]
        for name in names:
            shares[name].append(kinds[name] / len(found))
    for name, cell in zip(names, table.rows[0][1:], strict=True):
        assert_spread(cell, shares[name])
    assert table.rows[0][2].mean > 0 and names[2] == "right if it had stopped"


def test_corrections(results, predictions):
    _, (summary, by_seed) = build("corrections", results, "synth")
    counts = Counter()
    for seed in SEEDS:
        answers = (predictions[method, seed, BUDGETS[-1]] for method in MAIN)
        for sft, *others in zip(*answers, strict=True):
            category = prediction_category(sft["target"], sft["output"])
            counts[category, seed] += 1
            counts["any", "error"] += not sft["exact_match"]
            for method, one in zip(MAIN[1:], others, strict=True):
                counts[category, seed, method] += one["output"] == one["target"]
    for category, seed, count, *rest in by_seed.rows:
        key = category, int(seed)
        assert count == counts[key]
        assert rest[::2] == [counts[(*key, method)] for method in MAIN[1:]]
        rates = [
            100 * corrected / count if count else np.nan for corrected in rest[::2]
        ]
        assert rest[1::2] == pytest.approx(rates, nan_ok=True)
    assert sum(by_seed.column("Errors")) == counts["any", "error"]
    category, count, method, corrected, rate = summary.rows[1]
    assert (category, method) == ("over-generation", "ER-JEPA content")
    assert_spread(count, [counts[category, seed] for seed in SEEDS], scale=1)
    corrected_by_seed = [counts[category, seed, method] for seed in SEEDS]
    assert_spread(corrected, corrected_by_seed, scale=1)
    rates = [counts[category, s, method] / counts[category, s] for s in SEEDS]
    assert_spread(rate, rates)


OVER, UNDER, SAME, _ = ERROR_CATEGORIES
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


def test_the_papers_corrections_recompute_from_its_seeds(tmp_path):
    """Its table of means and deviations from made-up predictions with its counts of each seed."""
    seeds = (4, 23, 37, 82, 84)
    right = ".*dog.*"
    wrong = {OVER: ".*dog.*.*", UNDER: "dog.*", SAME: ".*truck.*"}
    output = write_output(
        tmp_path / "out",
        MAIN_METHODS,
        seeds=seeds,
        budgets=[1e12],
        examples=1,
    )
    for run in Results(output).runs.itertuples():
        outputs = []
        for category, by_seed in BY_SEED.items():
            errors, *corrected = by_seed[seeds.index(run.seed)]
            fixed = (0, *corrected)[MAIN.index(run.method)]
            outputs += [right] * fixed + [wrong[category]] * (errors - fixed)
        outputs += [right] * (2000 - len(outputs))
        common = {"prompt": "", "target": right}
        lines = [
            {"id": i, "output": one, "exact_match": one == right, **common}
            for i, one in enumerate(outputs)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (output / run.predictions).write_text(text)
    summary, _ = make("corrections", Results(output), "synth")
    shown = {(r[0], r[2]): (r[1], *r[3:]) for r in summary.rows(MARKDOWN)}
    for (category, method), printed in PRINTED.items():
        name = "ER-JEPA content" if method == "ER-JEPA" else method
        assert shown[category, name] == printed


def test_a_seed_without_errors_has_no_rate(tmp_path):
    output = write_output(
        tmp_path / "out",
        MAIN_METHODS,
        seeds=(1, 2),
        budgets=[1e12],
        examples=4,
    )
    for run in Results(output).runs.itertuples():
        path = output / run.predictions
        errs = run.seed == 1 and run.method != "ER-JEPA content"
        lines = read_rows(path)
        for line in lines:
            line["output"] = line["target"] + (".*" if errs else "")
        write_jsonl(path, lines)
    _, (summary, by_seed) = build("corrections", Results(output), "synth")
    over = summary.rows[1]  # ER-JEPA's: all four errors of one seed, none in the other
    assert (over[1].mean, over[3].mean, over[4].mean) == (2, 2, 100)
    assert np.isnan(over[4].sd)
    assert by_seed.rows[0][2:] == [4, 0, 0.0, 4, 100.0]
    assert np.isnan(by_seed.rows[1][4])


def test_outcomes(results, predictions):
    figure, (table,) = build("outcomes", results, "synth")
    pairs = Counter()
    for seed in SEEDS:
        answers = (predictions[method, seed, BUDGETS[-1]] for method in MAIN[1:])
        for both in zip(*answers, strict=True):
            kinds = (prediction_category(one["target"], one["output"]) for one in both)
            pairs[tuple(kinds)] += 1
    names = [name.removesuffix(" (%)") for name in table.columns[2:]]
    for row, total, *shares in table.rows:
        assert total == sum(pairs[row, name] for name in names)
        if total:
            expected = [100 * pairs[row, name] / total for name in names]
            assert shares == pytest.approx(expected)
    shown = [text.get_text() for text in figure.canvas.axes[0].texts]
    flat = [share for row in table.rows for share in row[2:]]
    assert shown == [f"{one:.1f}" for one in flat if not np.isnan(one)]


@pytest.mark.parametrize(
    ("section", "belongs"),
    [
        ("structures", lambda target, name: name in structures(target)),
        ("lengths", lambda target, name: name == length_group(target)),
    ],
)
def test_subsets(results, predictions, section, belongs):
    figure, (table,) = build(section, results, "synth")
    axes = figure.canvas.axes[0]
    drawn = [patch.get_width() for patch in bars(axes)] or [
        value for line in curves(axes).values() for value in line.get_ydata()
    ]
    expected = []
    for method, cells in zip(
        MAIN, (table.column(2 + i) for i in range(3)), strict=True
    ):
        for (name, total, *_), cell in zip(table.rows, cells, strict=True):
            by_seed = [
                [
                    one["exact_match"]
                    for one in predictions[method, seed, BUDGETS[-1]]
                    if belongs(one["target"], name)
                ]
                for seed in SEEDS
            ]
            assert total == len(by_seed[0]) > 0
            assert_spread(cell, [sum(one) / total for one in by_seed])
            expected.append(cell.mean)
    assert drawn == pytest.approx(expected)
