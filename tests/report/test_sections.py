"""Numbers in tables and figures, against the slow obvious way through the JSONL files."""

import json
import math
import statistics
from collections import Counter
from copy import copy
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

import erjepa.report.build  # noqa: F401  it enters the sections
from erjepa.report.figures import Figure
from erjepa.report.results import Results, Unavailable
from erjepa.report.sections import SECTIONS
from erjepa.report.table import MARKDOWN, SD, Table
from erjepa.tasks.nl_rx.regex_kinds import (
    ERROR_CATEGORIES,
    length_group,
    prediction_category,
    structures,
)
from tests.report.fake_output import METHODS, write_output

SEEDS = (82, 23, 37)
BUDGETS = [1e15, 2e15, 4e15]
MAIN = ("SFT", "LLM-JEPA", "ER-JEPA content")


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """Three methods of the paper, one more, the control; a method matched in tokens."""
    return write_output(
        tmp_path_factory.mktemp("experiment") / "out",
        methods={
            **METHODS,
            "LLM-JEPA token-matched": {
                "replay.weight": 0,
                "stop.tokens_of": "ER-JEPA content",
            },
        },
        seeds=SEEDS,
        budgets=BUDGETS,
        examples=60,
    )


@pytest.fixture(scope="module")
def results(output):
    return Results(output)


@pytest.fixture(scope="module")
def rows(output):
    lines = (output / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def predictions(output, rows):
    """Method, seed and budget to predictions."""
    return {
        (row["method"], row["seed"], row["budget"]): [
            json.loads(line)
            for line in (output / row["predictions"]).read_text().splitlines()
        ]
        for row in rows
    }


def accuracies(rows, method, budget):
    found = {
        row["seed"]: row
        for row in rows
        if (row["method"], row["budget"]) == (method, budget)
    }
    return [found[seed]["accuracy"] for seed in SEEDS]


class Cell(NamedTuple):
    mean: float
    sd: float


class View(NamedTuple):
    """A table, values with a standard deviation as one cell."""

    columns: list[str]
    rows: list[list]
    caption: str

    def column(self, name):
        index = name if isinstance(name, int) else self.columns.index(name)
        return [row[index] for row in self.rows]


def view(table):
    names = table.columns
    columns = [
        [Cell(*pair) for pair in zip(*both, strict=True)]
        if len(
            both := [
                table.frame[n].tolist() for n in (name, name + SD) if n in table.frame
            ]
        )
        > 1
        else both[0]
        for name in names
    ]
    return View(names, list(map(list, zip(*columns, strict=True))), table.caption)


def make(name, *arguments, **others):
    return SECTIONS[name].parts(*arguments, **others)


def parts_of(made):
    return (
        next((part for part in made if isinstance(part, Figure)), None),
        [view(part) for part in made if isinstance(part, Table)],
    )


def curves(axes):
    """What is drawn as curves: label to line; the legend's own samples have no points."""
    samples = {
        line.get_color(): line for line in axes.lines if not len(line.get_xdata())
    }
    drawn = [
        line
        for line in axes.lines
        if len(line.get_xdata()) and line.get_linestyle() != "None"
    ]
    return {samples[line.get_color()].get_label(): line for line in drawn}


def bars(axes):
    """The bars that are drawn, method by method."""
    return [patch for patch in axes.patches if patch.get_label() == "_nolegend_"]


def assert_spread(cell, values, scale=100):
    assert cell.mean == pytest.approx(scale * statistics.mean(values))
    assert cell.sd == pytest.approx(scale * statistics.stdev(values))


def test_main(results, rows):
    figure, (table,) = parts_of(make("accuracy", results))
    assert table.column(0) == results.methods
    for method, cell, least, most, count in table.rows[:5]:
        values = accuracies(rows, method, BUDGETS[-1])
        assert_spread(cell, values)
        assert (least, most) == pytest.approx((100 * min(values), 100 * max(values)))
        assert count == len(SEEDS)
    (axes,) = figure.canvas.axes
    bars = [patch.get_width() for patch in axes.patches]
    assert bars == pytest.approx([cell.mean for cell in table.column(1)])
    assert [label.get_text() for label in axes.get_yticklabels()] == results.methods


def test_main_of_several_datasets(tmp_path):
    output = write_output(
        tmp_path / "out",
        datasets={"synth": "a", "qa": "b"},
        seeds=(1, 2),
        budgets=[1e12],
        examples=8,
    )
    results = Results(output)
    figure, (table,) = parts_of(make("accuracy", results, None, MAIN))
    assert table.columns == ["Method", "synth", "qa"]
    (axes,) = figure.canvas.axes
    heights = np.array([patch.get_height() for patch in bars(axes)]).reshape(3, 2)
    for method, row, drawn in zip(MAIN, table.rows, heights, strict=True):
        for name, cell, height in zip(("synth", "qa"), row[1:], drawn, strict=True):
            assert_spread(cell, results.final(name, [method]).accuracy, scale=1)
            assert height == pytest.approx(cell.mean)


def test_some_methods_and_a_remark(results, rows):
    methods = ["LLM-JEPA token-matched", "ER-JEPA content"]
    figure, (table,) = parts_of(
        make("accuracy", results, None, methods, remark="A remark.")
    )
    assert table.column(0) == methods
    assert len(figure.canvas.axes[0].patches) == 2
    assert table.caption.endswith("Over 3 seeds. A remark.")


def test_stored_pairs_against_the_current_batch(results, rows):
    _, (table,) = parts_of(
        make(
            "significance",
            results,
            None,
            ["ER-JEPA uniform"],
            reference="current batch",
        )
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


def test_matched_compute(results, rows):
    figure, (table,) = parts_of(make("matched_compute", results, "synth"))
    assert table.columns == ["Method", "1", "2", "4", "AUC (%)"]
    assert "LLM-JEPA token-matched" not in table.column(0)
    axes = figure.canvas.axes[0]
    assert axes.get_xlabel() == "training compute (PFLOPs)"
    assert list(curves(axes)) == table.column(0)
    for method, *cells, area in table.rows:
        line = curves(axes)[method]
        by_budget = [accuracies(rows, method, budget) for budget in BUDGETS]
        for cell, values in zip(cells, by_budget, strict=True):
            assert_spread(cell, values)
        # Trapezoids of widths 1 and 2 over a range of 3.
        areas = [
            ((a + b) / 2 + (b + c)) / 3 for a, b, c in zip(*by_budget, strict=True)
        ]
        assert_spread(area, areas)
        assert list(line.get_xdata()) == [1, 2, 4]
        assert list(line.get_ydata()) == pytest.approx([cell.mean for cell in cells])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    first = table.rows[0][1]
    low, high = first.mean - first.sd, first.mean + first.sd
    assert np.isclose(band, low).any() and np.isclose(band, high).any()


def test_single_seeds(results, rows):
    figure, _ = parts_of(make("single_seeds", results, "synth"))
    assert [axes.get_title() for axes in figure.canvas.axes] == [
        f"seed {s}" for s in SEEDS
    ]
    for seed, axes in zip(SEEDS, figure.canvas.axes, strict=True):
        assert list(curves(axes)) == list(METHODS)
        for method, line in curves(axes).items():
            expected = [
                100 * row["accuracy"]
                for row in rows
                if (row["method"], row["seed"]) == (method, seed)
            ]
            assert list(line.get_ydata()) == pytest.approx(expected)


def test_significance(results, rows):
    _, (table,) = parts_of(
        make("significance", results, None, ["SFT", "ER-JEPA content"])
    )
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
        # All differences are positive: no draw of the bootstrap has a mean below zero.
        assert row[4] == 3 and row[9] == 1 / 10_001


def test_what_is_not_claimed_is_tested_two_sided(results):
    methods = ["current batch", "ER-JEPA uniform", "LLM-JEPA"]
    _, (table,) = parts_of(
        make("significance", results, None, methods, reference="ER-JEPA content")
    )
    assert [(row[1], row[2], row[6]) for row in table.rows] == [
        ("current batch", "ER-JEPA content", "two-sided"),
        ("ER-JEPA uniform", "ER-JEPA content", "two-sided"),
        ("ER-JEPA content", "LLM-JEPA", "one-tailed"),
    ]
    _, (both,) = parts_of(
        make(
            "significance",
            results,
            None,
            ["ER-JEPA content"],
            reference="current batch",
        )
    )
    assert both.rows[0][3].mean == -table.rows[0][3].mean
    assert both.rows[0][8] == table.rows[0][8]


def test_significance_needs_a_reference(tmp_path):
    methods = {"sparse": {}, "dense": {"replay.address": "dense"}}
    output = write_output(tmp_path / "out", methods, seeds=(1, 2), examples=9)
    with pytest.raises(Unavailable, match="name a `reference`"):
        make("significance", Results(output))
    _, (table,) = parts_of(make("significance", Results(output), reference="dense"))
    assert table.column(1) == ["sparse"]


def test_drops(tmp_path):
    curves = {
        "SFT": [(0.25, 0.5, 0.375), (0.25, 0.5, 0.25), (0.25, 0.375, 0.5)],
        "LLM-JEPA": [(0.5, 0.25, 0.125), (0.5, 0.25, 0.75), (0.5, 0.375, 0.5)],
        "ER-JEPA content": [(0.5, 0.5, 0.5), (0.5, 0.375, 0.5), (0.25, 0.5, 0.75)],
    }
    methods = {name: METHODS[name] for name in MAIN}
    output = write_output(
        tmp_path / "out", methods, seeds=SEEDS, budgets=BUDGETS, examples=3
    )
    path = output / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        at = SEEDS.index(row["seed"]), BUDGETS.index(row["budget"])
        row["accuracy"] = curves[row["method"]][at[0]][at[1]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = make("drops", Results(output), "synth")
    _, (table, paired) = parts_of(made)
    # Seeds that decline, of how many, largest of all; declines, largest, best less last.
    # Worked by hand, as shares.
    expected = [
        (2, 3, 0.25, [1, 1, 0], [0.125, 0.25, 0], [0.125, 0.25, 0]),
        (3, 3, 0.25, [2, 1, 1], [0.25, 0.25, 0.125], [0.375, 0, 0]),
        (1, 3, 0.125, [0, 1, 0], [0, 0.125, 0], [0, 0, 0]),
    ]
    for method, row, one in zip(MAIN, table.rows, expected, strict=True):
        assert (row[0], row[1], row[2], row[5]) == (method, *one[:2], 100 * one[2])
        for cell, values, scale in zip(
            (row[3], row[4], row[6]), one[3:], (1, 100, 100), strict=True
        ):
            assert_spread(cell, values, scale)
    tests = [
        ("SFT", "two-sided", [0.125, 0, 0.125], 2),
        ("ER-JEPA content", "one-tailed", [0.25, 0.125, 0.125], 3),
    ]
    assert "direction (ER-JEPA over LLM-JEPA), else" in paired.caption
    for row, (method, test, differences, won) in zip(paired.rows, tests, strict=True):
        assert (row[1], row[2], row[4], row[6]) == (method, "LLM-JEPA", won, test)
        assert_spread(row[3], differences)


def test_stops(results, predictions):
    _, (table,) = parts_of(make("stops", results, "synth", ["SFT"]))
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


def test_readings(results, rows):
    _, (table,) = parts_of(make("readings", results, "synth", ["SFT"]))
    assert table.columns == ["Method", "exact_match", "llm_jepa"]
    assert_spread(table.rows[0][2], accuracies(rows, "SFT", BUDGETS[-1]))


def test_corrections(results, predictions):
    _, (summary, by_seed) = parts_of(make("corrections", results, "synth"))
    counts = Counter()
    for seed in SEEDS:
        both = zip(
            *(predictions[method, seed, BUDGETS[-1]] for method in MAIN), strict=True
        )
        for sft, *others in both:
            category = prediction_category(sft["target"], sft["output"])
            counts[category, seed] += 1
            for method, one in zip(MAIN[1:], others, strict=True):
                counts[category, seed, method] += one["output"] == one["target"]
    for category, seed, count, *rest in by_seed.rows:
        key = category, int(seed)
        assert count == counts[key]
        for method, corrected, rate in zip(
            MAIN[1:], rest[::2], rest[1::2], strict=True
        ):
            assert corrected == counts[(*key, method)]
            if count:
                assert rate == pytest.approx(100 * corrected / count)
            else:
                assert np.isnan(rate)
    assert sum(by_seed.column("Errors")) == sum(
        not one["exact_match"]
        for s in SEEDS
        for one in predictions["SFT", s, BUDGETS[-1]]
    )
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
        {method: METHODS[method] for method in MAIN},
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
        {method: METHODS[method] for method in MAIN},
        seeds=(1, 2),
        budgets=[1e12],
        examples=4,
    )
    for run in Results(output).runs.itertuples():
        path = output / run.predictions
        errs = run.seed == 1 and run.method != "ER-JEPA content"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["output"] = line["target"] + (".*" if errs else "")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, (summary, by_seed) = parts_of(make("corrections", Results(output), "synth"))
    over = summary.rows[1]  # ER-JEPA's: all four errors of one seed, none in the other
    assert (over[1].mean, over[3].mean, over[4].mean) == (2, 2, 100)
    assert np.isnan(over[4].sd)
    assert by_seed.rows[0][2:] == [4, 0, 0.0, 4, 100.0]
    assert np.isnan(by_seed.rows[1][4])


def test_outcomes(results, predictions):
    figure, (table,) = parts_of(make("outcomes", results, "synth"))
    pairs = Counter()
    for seed in SEEDS:
        for a, b in zip(
            *(predictions[m, seed, BUDGETS[-1]] for m in MAIN[1:]), strict=True
        ):
            row, name = (
                prediction_category(one["target"], one["output"]) for one in (a, b)
            )
            pairs[row, name] += 1
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
    figure, (table,) = parts_of(make(section, results, "synth"))
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


def test_dynamics(results, rows, predictions):
    figure, (table,) = parts_of(make("dynamics", results, "synth"))
    left, middle, right = figure.canvas.axes
    assert list(curves(left)["LLM-JEPA"].get_ydata()) == pytest.approx(
        [100 * statistics.mean(accuracies(rows, "LLM-JEPA", b)) for b in BUDGETS]
    )
    for index, method in enumerate(MAIN):
        pooled = {"corrected": [], "lost": []}
        by_step = []
        for seed in SEEDS:
            verdicts = [
                [one["exact_match"] for one in predictions[method, seed, budget]]
                for budget in BUDGETS
            ]
            counts = Counter()
            for step, (before, after) in enumerate(
                zip(verdicts[:-1], verdicts[1:], strict=True)
            ):
                for was, is_right in zip(before, after, strict=True):
                    counts[was] += 1
                    counts[step, was] += 1
                    if was != is_right:
                        counts["change", was] += 1
                        counts["change", step, was] += 1
            pooled["corrected"].append(counts["change", False] / counts[False])
            pooled["lost"].append(counts["change", True] / counts[True])
            by_step.append(counts)
        assert_spread(table.rows[index][1], pooled["corrected"])
        assert_spread(table.rows[index][2], pooled["lost"])
        for panel, was in ((middle, False), (right, True)):
            line = curves(panel)[method]
            assert list(line.get_xdata()) == [2, 4]
            assert list(line.get_ydata()) == pytest.approx(
                [
                    100
                    * statistics.mean(
                        c["change", step, was] / c[step, was] for c in by_step
                    )
                    for step in (0, 1)
                ]
            )


def test_dynamics_are_those_of_whole_runs(tmp_path):
    output = write_output(
        tmp_path / "out", seeds=SEEDS, budgets=BUDGETS, examples=12, methods={"a": {}}
    )
    path = output / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], *lines[5:]]))  # 23 lacks its second budget
    results = Results(output)
    figure, _ = parts_of(make("dynamics", results, "synth"))
    assert "fewer are finished of a 2" in figure.caption
    expected = [
        statistics.mean(
            row.accuracy
            for row in results.runs.itertuples()
            if row.seed != 23 and row.budget == budget
        )
        for budget in BUDGETS
    ]
    (line,) = curves(figure.canvas.axes[0]).values()
    assert list(line.get_ydata()) == pytest.approx(expected)


def test_checkpoints_at_budgets_are_no_ends_of_epochs(tmp_path):
    output = write_output(tmp_path / "out", seeds=(1,), examples=3, methods={"a": {}})
    results = Results(output)
    assert {1, 2} < set(results.runs.epoch)
    with pytest.raises(Unavailable, match="end of two epochs"):
        make("learning_curves", results, "synth")


@pytest.mark.parametrize("name", ["matched_compute", "single_seeds"])
def test_matched_compute_needs_budgets(name, tmp_path):
    output = write_output(
        tmp_path / "out", seeds=(1,), budgets=None, examples=3, methods={"a": {}}
    )
    with pytest.raises(Unavailable, match="no compute budgets"):
        make(name, Results(output), "synth")


def test_alignment(results, predictions):
    figure, (table,) = parts_of(make("alignment", results, "synth", MAIN[1:], seed=23))
    for index, method in enumerate(MAIN[1:]):
        runs = [predictions[method, 23, budget] for budget in BUDGETS]
        histories = sorted(
            range(60),
            key=lambda i: [not run[i]["exact_match"] for run in runs[::-1]],  # noqa: B023
        )
        panels = [axes for axes in figure.canvas.axes if axes.images]
        cosine, correct = (
            next(iter(axes.images)).get_array()
            for axes in panels[2 * index : 2 * index + 2]
        )
        assert cosine.tolist() == [
            [run[i]["cosine"] for run in runs] for i in histories
        ]
        assert correct.astype(bool).tolist() == [
            [run[i]["exact_match"] for run in runs] for i in histories
        ]
        last = table.rows[3 * index + 2]
        wrong = [one["cosine"] for one in runs[-1] if not one["exact_match"]]
        assert last[0] == method and last[1] == 3
        assert last[5] == pytest.approx(statistics.mean(wrong))


def test_alignment_needs_cosines(tmp_path):
    results = Results(
        write_output(
            tmp_path / "out", seeds=(1,), budgets=[1e12, 2e12], examples=3, cosine=False
        )
    )
    with pytest.raises(Unavailable, match="alignment"):
        make("alignment", results, "synth")


def test_examples(results, predictions):
    _, (table,) = parts_of(make("examples", results, "synth"))
    starts = [row for row in table.rows if row[0]]
    assert Counter(row[0] for row in starts)["over-generation"] > 1
    assert len(table.rows) == len(starts) * (1 + len(MAIN)) == 9 * 4
    llm_jepa = [row[5] for row in table.rows if row[3] == "LLM-JEPA"]
    assert (llm_jepa.count("yes"), llm_jepa.count("no")) == (2, 7)
    assert all(row[5] == "yes" for row in table.rows if row[3] == "ER-JEPA content")
    first = table.rows[:4]
    category, seed = first[0][0], int(first[0][1])
    by_method = {m: predictions[m, seed, BUDGETS[-1]] for m in MAIN}
    # The first example of the first seed that the rule allows.
    at = next(
        i
        for i, (sft, llm, er) in enumerate(zip(*by_method.values(), strict=True))
        if prediction_category(sft["target"], sft["output"]) == category
        and llm["exact_match"]
        and er["exact_match"]
    )
    assert seed == SEEDS[0]
    assert first[0][2] == by_method["SFT"][at]["prompt"]
    for row, method in zip(first[1:], MAIN, strict=True):
        one = by_method[method][at]
        kept = "".join(part for part, kind in row[4] if kind != "missing")
        assert (row[3], kept) == (method, one["output"])
        assert row[5] == ("yes" if one["exact_match"] else "no")


def test_examples_of_other_tasks_show_answers(tmp_path):
    output = write_output(
        tmp_path / "out", datasets={"qa": "x"}, seeds=(1,), budgets=[1e12]
    )
    for path in output.rglob("predictions.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["extracted"] += "; Rome" if not line["exact_match"] else ""
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, (table,) = parts_of(make("examples", Results(output), "qa"))
    assert table.rows[0][0] == "wrong"
    assert table.rows[0][4] in ("Paris", "12", "the moon")
    # Of several answers the first is shown, and that others follow.
    assert table.rows[1][5] == "no" and table.rows[1][4].endswith(" …")
    assert ";" not in table.rows[1][4]
    assert all(isinstance(cell, str) for cell in table.column(4))


def test_cost(results):
    _, (table,) = parts_of(make("cost", results, "synth", ["SFT"]))
    (row,) = table.rows
    assert table.columns[2:5] == ["Steps", "PFLOPs", "Tokens (M)"]
    assert [cell.mean for cell in row[2:5]] == pytest.approx([60, 4.004, 4.5])


def test_learning_curves(tmp_path):
    methods = {"M = 10": {"replay.capacity": 10}, "M = 100": {"replay.capacity": 100}}
    output = write_output(
        tmp_path / "out",
        methods=methods,
        seeds=(1, 2),
        budgets=None,
        epochs=2,
        examples=8,
    )
    results = Results(output)
    figure, _ = parts_of(make("learning_curves", results, "synth"))
    by_epoch = [[], []]
    for row in results.runs.itertuples():
        if row.method == "M = 10":
            by_epoch[row.epoch - 1].append(row.accuracy)
    lines = curves(figure.canvas.axes[0])
    assert methods.keys() == lines.keys()
    line = lines["M = 10"]
    assert list(line.get_xdata()) == [1, 2]
    means = [statistics.mean(one) for one in by_epoch]
    assert list(line.get_ydata()) == pytest.approx(means)


def test_lambda_k(tmp_path):
    methods = {
        f"{weight}/{k}": {"loss.jepa_weight": weight, "num_predictor_tokens": k}
        for weight, k in ((2, 1), (0.5, 1), (0.5, 4))
    }
    methods["LLM-JEPA"] = {
        "replay.weight": 0,
        "loss.jepa_weight": 2,
        "num_predictor_tokens": 4,
    }
    output = write_output(
        tmp_path / "out", methods=methods, seeds=(1, 2), budgets=[1e12], examples=8
    )
    results = Results(output)
    figure, (table,) = parts_of(make("lambda_k", results, "synth"))
    assert table.columns == ["λ", "k = 1", "k = 4"]
    assert table.column(0) == ["0.5", "2"]
    for method, cell in (("0.5/4", table.rows[0][2]), ("2/1", table.rows[1][1])):
        assert_spread(cell, results.final("synth", [method]).accuracy, scale=1)
    assert np.isnan(table.rows[1][2].mean)
    texts = [
        (text.get_text(), text.get_weight()) for text in figure.canvas.axes[0].texts
    ]
    means = [cell.mean for row in table.rows for cell in row[1:]]
    assert len(texts) == 3  # where there is no method, there is no number
    best = {text for text, weight in texts if weight == "bold"}
    assert best == {f"{np.nanmax(means):.2f}"}


def test_figure_1(tmp_path):
    main = write_output(
        tmp_path / "main" / "model",
        methods={name: METHODS[name] for name in MAIN},
        datasets={"synth": "a", "qa": "b"},
        seeds=(1, 2),
        budgets=None,
        epochs=2,
        examples=8,
    )
    results = Results(main)
    figure, tables = parts_of(make("figure_1", results, matched="../../matched/model"))
    left, right = figure.canvas.axes
    heights = [patch.get_height() for patch in bars(left)]
    assert not tables and len(heights) == 2 * 3
    assert heights[0] == pytest.approx(results.final("synth", ["SFT"]).accuracy.mean())
    first = results.of("synth", ["SFT"])
    flops = {row.epoch: row.total_flops / 1e15 for row in first.itertuples()}
    assert list(curves(right)["SFT"].get_xdata()) == pytest.approx([flops[1], flops[2]])
    assert "mean compute of each" in figure.caption
    # The curves of the other experiment once there is one; a method's color is its role's.
    matched = write_output(
        tmp_path / "matched" / "model",
        methods={"uniform": {"replay.selection": "uniform"}, "SFT": METHODS["SFT"]},
        seeds=(1, 2),
        budgets=BUDGETS,
        examples=8,
    )
    figure, _ = parts_of(make("figure_1", results, matched="../../matched/model"))
    before, drawn = curves(right), curves(figure.canvas.axes[1])
    sft, uniform = (
        drawn["SFT"],
        drawn["ER-JEPA content"],
    )  # it has its role, and its look
    assert list(uniform.get_xdata()) == [1, 2, 4]
    other = Results(matched)
    assert uniform.get_ydata()[-1] == pytest.approx(
        other.final("synth", ["uniform"]).accuracy.mean()
    )
    assert sft.get_color() == before["SFT"].get_color()
    assert uniform.get_color() == before["ER-JEPA content"].get_color()
    other_sft = other.final("synth", ["SFT"]).accuracy.mean()
    assert sft.get_ydata()[-1] == pytest.approx(other_sft)
    assert "at matched compute" in figure.caption


def write_trials(folder, **config):
    methods = {
        "SFT low": {**METHODS["SFT"], "optimizer.lr": 1e-5},
        "SFT high": {**METHODS["SFT"], "optimizer.lr": 1e-4},
        "beta 1": {"replay.weight": 1},
        "beta 2": {"replay.weight": 2},
    }
    return write_output(
        folder, methods=methods, seeds=(1, 2), budgets=[1e12], examples=30, **config
    )


def test_settings_are_chosen_on_validation_pairs(tmp_path):
    output = write_trials(tmp_path / "out", score_on="validation")
    for path in output.rglob("predictions.jsonl"):
        path.unlink()  # the lines of results.jsonl are all that is read
    results = Results(output)
    _, (best, trials) = parts_of(make("chosen", results, "synth"))
    assert trials.column(1) == results.methods
    for role, names in (("SFT", results.methods[:2]), ("ER-JEPA", results.methods[2:])):
        means = {name: results.final("synth", [name]).accuracy.mean() for name in names}
        winner = max(means, key=means.get)
        (row,) = [row for row in best.rows if row[0] == role]
        assert row[1] == winner and row[2].mean == pytest.approx(means[winner])
        assert row[3] == 2
        assert [r[5] for r in trials.rows if r[0] == role] == [
            "yes" if name == winner else "" for name in names
        ]
    assert "optimizer.lr=" in best.rows[0][4]


def test_settings_are_not_chosen_on_test_pairs(tmp_path):
    output = write_trials(tmp_path / "out")
    with pytest.raises(Unavailable, match="scored on the test pairs"):
        make("chosen", Results(output), "synth")


def test_a_setting_with_fewer_seeds_is_not_chosen(tmp_path):
    output = write_trials(tmp_path / "out", score_on="validation")
    path = output / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["accuracy"] = 1.0 if row["method"] == "SFT high" else row["accuracy"]
    kept = [r for r in rows if (r["method"], r["seed"]) != ("SFT high", 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    _, (best, _) = parts_of(make("chosen", Results(output), "synth"))
    assert best.rows[0][1] == "SFT low"


def test_embeddings(results, rows):
    _, (table,) = parts_of(make("embeddings", results, "synth"))
    assert table.columns == [
        *("Method", "Cosine of a pair", "of strangers", "RankMe", "Retrieval@1")
    ]
    for method, paired, strangers, *unlogged in table.rows:
        last = BUDGETS[-1], None
        own = [row for row in rows if row["method"] == method]
        ends = [row for row in own if row["budget"] in last]
        logged = [row["metrics"]["cosine_shuffled"] for row in ends]
        assert paired == pytest.approx((0.9, 0))
        assert strangers == pytest.approx(
            (statistics.fmean(logged), statistics.stdev(logged))
        )
        assert all(math.isnan(cell.mean) for cell in unlogged)
    silent = copy(results)
    silent.runs = results.runs.assign(metrics=[{}] * len(results.runs))
    with pytest.raises(Unavailable, match="overrides.log_collapse=True"):
        make("embeddings", silent, "synth")
