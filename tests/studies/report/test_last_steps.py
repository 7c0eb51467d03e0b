"""Sections on the last steps of runs."""

import math
import statistics
from copy import copy

import pytest

from erjepa.studies.report.results import Results, Unavailable
from erjepa.studies.report.sections import SECTIONS
from tests.harness.fake_output import write_output
from tests.harness.report_parts import BUDGETS, build, make


def test_embeddings(results, rows):
    _, (table,) = build("embeddings", results, "synth")
    cosines = ["Cosine, own target", "Cosine, other target"]
    assert table.columns == ["Method", *cosines, "RankMe", "Retrieval@1"]
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


def test_losses(results):
    """Those of paths that are off are left out."""
    some = copy(results)
    trained = {"lm_loss": 0.5, "jepa_loss": 0.0, "replay_lm_loss": 0.25}
    kinds = {"SFT": {"lm_loss": 2.0, "jepa_loss": 0.0, "replay_lm_loss": 0.0}}
    metrics = [kinds.get(method, trained) for method in results.runs.method]
    some.runs = results.runs.assign(metrics=metrics)
    _, (table,) = build("losses", some, "synth")
    assert table.columns == ["Method", "Next token", "Next token, replayed"]
    for method, new, replayed in table.rows:
        assert new == pytest.approx((2.0 if method == "SFT" else 0.5, 0))
        off = method == "SFT"
        assert (
            math.isnan(replayed.mean) if off else replayed == pytest.approx((0.25, 0))
        )
    some.runs = results.runs.assign(metrics=[{}] * len(results.runs))
    with pytest.raises(Unavailable, match="losses"):
        make("losses", some, "synth")


def test_proposition(results):
    """Runs without replay measure no update, and are left out."""
    some = copy(results)
    measured = {"replay_benefit": -0.5, "replay_benefit_expected": -0.25}
    measured |= {"replay_gradient_norm": 2.0, "gradient_cosine": 0.5}
    metrics = [{} if m == "SFT" else measured for m in results.runs.method]
    some.runs = results.runs.assign(metrics=metrics)
    _, (table,) = build("proposition", some, "synth")
    assert "SFT" not in [method for method, *_ in table.rows] and table.rows
    for _, benefit, expected, norm, outside, cosine in table.rows:
        assert [benefit.mean, expected.mean, norm.mean, cosine.mean] == [
            *measured.values()
        ]
        assert math.isnan(outside.mean)
    with pytest.raises(Unavailable, match="log_replay_gradients_every_n_steps"):
        make("proposition", results, "synth")


def test_a_sequence_shows_the_runs_on_each_dataset(tmp_path):
    """Not the losses and the cost of its last stage, which scored all datasets."""
    methods = {"SFT": {"replay.weight": 0}, "Joint": {"trains_on": "all"}}
    names = {"b": "tiny_synth", "a": "tiny_synth"}
    settings = {"methods": methods, "datasets": names, "continual": True}
    output = write_output(tmp_path, budgets=[1e15], seeds=(1,), examples=2, **settings)
    results = Results(output)
    losses = results.runs.stage.map({"b": {"lm_loss": 5.0}, "a": {"lm_loss": 8.0}})
    results.runs = results.runs.assign(metrics=losses, steps=losses.str["lm_loss"])
    expected = {"b": {"SFT": 5.0}, "a": {"SFT": 8.0, "Joint": 8.0}}
    for dataset, own in expected.items():
        for section, column in (("losses", "Next token"), ("cost", "Steps")):
            (table,) = SECTIONS[section].parts(results, dataset)
            found = table.frame.set_index("Method")[column]
            assert found.to_dict() == own, (section, dataset)
            assert "One seed." in table.caption and "±" not in table.caption
