"""Sections on accuracy, compared with a slow computation from the JSONL files."""

import numpy as np
import pytest

from erjepa.studies.report.results import Results, Unavailable
from tests.harness.data import write_jsonl
from tests.harness.fake_output import METHODS, read_rows, write_output
from tests.harness.report_parts import (
    BUDGETS,
    MAIN,
    SEEDS,
    accuracies,
    assert_spread,
    bars,
    build,
    make,
)


def test_main(results, rows):
    figure, (table,) = build("accuracy", results)
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
    figure, (table,) = build("accuracy", results, None, MAIN)
    assert table.columns == ["Method", "synth", "qa"]
    (axes,) = figure.canvas.axes
    heights = np.array([patch.get_height() for patch in bars(axes)]).reshape(3, 2)
    for method, row, drawn in zip(MAIN, table.rows, heights, strict=True):
        for name, cell, height in zip(("synth", "qa"), row[1:], drawn, strict=True):
            assert_spread(cell, results.final(name, [method]).accuracy, scale=1)
            assert height == pytest.approx(cell.mean)


def test_some_methods_and_a_remark(results, rows):
    methods = ["LLM-JEPA token-matched", "ER-JEPA content"]
    figure, (table,) = build("accuracy", results, None, methods, remark="A remark.")
    assert table.column(0) == methods
    assert len(figure.canvas.axes[0].patches) == 2
    assert table.caption.endswith("Over 3 seeds. A remark.")


def test_readings(results, rows):
    _, (table,) = build("readings", results, "synth", ["SFT"])
    assert table.columns == ["Method", "exact_match", "llm_jepa"]
    assert_spread(table.rows[0][2], accuracies(rows, "SFT", BUDGETS[-1]))


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
    figure, (table,) = build("lambda_k", results, "synth")
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


def write_trials(folder, **config):
    methods = {
        "SFT, low": {**METHODS["SFT"], "optimizer.lr": 1e-5},
        "SFT, high": {**METHODS["SFT"], "optimizer.lr": 1e-4},
        "Replay, beta 1": {"replay.weight": 1},
        "Replay, beta 2": {"replay.weight": 2},
    }
    return write_output(
        folder, methods=methods, seeds=(1, 2), budgets=[1e12], examples=30, **config
    )


def test_settings_are_chosen_on_validation_pairs(tmp_path):
    output = write_trials(tmp_path / "out", score_on="validation")
    for path in output.rglob("predictions.jsonl"):
        path.unlink()  # the lines of results.jsonl are all that is read
    results = Results(output)
    _, (best, trials) = build("chosen", results, "synth")
    assert trials.column(1) == results.methods
    for method, names in (
        ("SFT", results.methods[:2]),
        ("Replay", results.methods[2:]),
    ):
        means = {name: results.final("synth", [name]).accuracy.mean() for name in names}
        winner = max(means, key=means.get)
        (row,) = [row for row in best.rows if row[0] == method]
        assert row[1] == winner and row[2].mean == pytest.approx(means[winner])
        assert row[3] == 2
        assert [r[5] for r in trials.rows if r[0] == method] == [
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
    rows = read_rows(path)
    for row in rows:
        row["accuracy"] = 1.0 if row["method"] == "SFT, high" else row["accuracy"]
    kept = [r for r in rows if (r["method"], r["seed"]) != ("SFT, high", 2)]
    write_jsonl(path, kept)
    _, (best, _) = build("chosen", Results(output), "synth")
    assert best.rows[0][1] == "SFT, low"
