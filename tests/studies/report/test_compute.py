"""Sections on compute: curves and costs, compared with results.jsonl."""

import statistics

import numpy as np
import pytest

from erjepa.studies.report.results import Results, Unavailable
from tests.harness.fake_output import MAIN_METHODS, METHODS, write_output
from tests.harness.report_parts import (
    BUDGETS,
    SEEDS,
    accuracies,
    assert_spread,
    bars,
    build,
    curves,
    make,
)


def test_matched_compute(results, rows):
    figure, (table,) = build("matched_compute", results, "synth")
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
    figure, _ = build("single_seeds", results, "synth")
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


@pytest.mark.parametrize("name", ["matched_compute", "single_seeds"])
def test_matched_compute_needs_budgets(name, tmp_path):
    output = write_output(
        tmp_path / "out", seeds=(1,), budgets=None, examples=3, methods={"a": {}}
    )
    with pytest.raises(Unavailable, match="no compute budgets"):
        make(name, Results(output), "synth")


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
    figure, _ = build("learning_curves", results, "synth")
    by_epoch = [[], []]
    for row in results.runs.itertuples():
        if row.method == "M = 10":
            by_epoch[int(row.epoch) - 1].append(row.accuracy)
    lines = curves(figure.canvas.axes[0])
    assert methods.keys() == lines.keys()
    line = lines["M = 10"]
    assert list(line.get_xdata()) == [1, 2]
    means = [statistics.mean(one) for one in by_epoch]
    assert list(line.get_ydata()) == pytest.approx(means)


def test_checkpoints_at_budgets_are_no_ends_of_epochs(tmp_path):
    output = write_output(tmp_path / "out", seeds=(1,), examples=3, methods={"a": {}})
    results = Results(output)
    assert {1, 2} < set(results.runs.epoch)
    with pytest.raises(Unavailable, match="end of two epochs"):
        make("learning_curves", results, "synth")


def test_cost(results):
    _, (table,) = build("cost", results, "synth", ["SFT"])
    (row,) = table.rows
    assert table.columns[2:5] == ["Steps", "PFLOPs", "Tokens (M)"]
    assert [cell.mean for cell in row[2:5]] == pytest.approx([60, 4.004, 4.5])


def test_figure_1(tmp_path):
    main = write_output(
        tmp_path / "main" / "model",
        methods=MAIN_METHODS,
        datasets={"synth": "a", "qa": "b"},
        seeds=(1, 2),
        budgets=None,
        epochs=2,
        examples=8,
    )
    results = Results(main)
    figure, tables = build("figure_1", results, matched="../../matched/model")
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
    figure, _ = build("figure_1", results, matched="../../matched/model")
    before, drawn = curves(right), curves(figure.canvas.axes[1])
    sft = drawn["SFT"]
    uniform = drawn["ER-JEPA content"]  # it has its role, and its look
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


def test_figure_1_waits_for_the_first_result_at_matched_compute(tmp_path):
    output = write_output(tmp_path / "main", seeds=(1, 2), examples=4)
    other = write_output(tmp_path / "main" / "fair", seeds=(1, 2), examples=4)
    (other / "results.jsonl").unlink()
    with pytest.raises(Unavailable, match="nothing is scored yet at matched compute"):
        make("figure_1", Results(output), matched="fair")
