"""Runs with objectives other than the paper's: their steps, divisions of a step, and resuming."""

import re
from pathlib import Path

import pytest

from tests.harness.cases import some_of
from tests.harness.runs import (
    assert_close_logs,
    read_metrics,
    read_untimed,
    small_config,
    train,
    watch_forwards,
)

SFT = {"replay__weight": 0, "loss__jepa_weight": 0}
RUNS = {
    "infonce": {
        "loss__distance": "infonce",
        "loss__direction": "both",
        "loss__jepa_every": 2,
        "loss__sigreg_weight": 0.1,
        "predictor_position": "front",
        "log_collapse": True,
    },
    "spans": {"views": "spans", "loss__jepa_every": 1, "replay__selection": "hard"},
}


def run(base, data, output_dir, world_size=1, inspect=None, **overrides):
    settings = {"batch_size": 8, "replay__budget": 6, "stop__steps": 5, **overrides}
    cfg = small_config(base, data, output_dir, **settings)
    result = train(cfg, world_size, inspect)
    return read_metrics(output_dir), result


def documented_metrics():
    """The metrics in the table of docs/logging.md, terms of the loss for replayed pairs too."""
    text = (Path(__file__).parents[2] / "docs" / "logging.md").read_text()
    table = text.partition("## Metrics")[2]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    names = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    return names | {f"replay_{name}" for name in names if name.endswith("_loss")}


def test_steps_between_those_with_a_jepa_loss_are_steps_of_sft(
    base, data, tmp_path, monkeypatch
):
    seen = watch_forwards(monkeypatch)

    def passes(name, **overrides):
        metrics, (found,) = run(
            base, data, tmp_path / name, inspect=lambda _: seen, **overrides
        )
        return metrics, [(b.num_tokens, b.tokens.numel(), b.num_views) for b in found]

    sft, plain = passes("sft", **SFT)
    # Steps 1 and 4 have views and replay, in step 1 of an empty memory.
    metrics, found = passes("third", loss__jepa_every=3)
    assert [views for *_, views in found] == [8, 0, 0, 0, 8, 6, 0]
    assert [found[i] for i in (2, 3, 6)] == [plain[i] for i in (1, 2, 4)]
    assert ["jepa_loss" in step for step in metrics] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert [step["memory_size"] for step in metrics] == [8, 8, 8, 16, 16]
    assert [step["replayed"] for step in metrics] == [0, 0, 0, 6, 0]
    for i in (1, 2, 4):
        assert metrics[i]["step_flops"] == sft[i]["step_flops"]
        assert metrics[i]["loss"] == pytest.approx(metrics[i]["lm_loss"], rel=1e-6)


@pytest.mark.parametrize("name", some_of(RUNS, ["infonce"]))
def test_any_cut_and_any_stop_gives_the_same_run(base, data, tmp_path, name):
    expected, _ = run(base, data, tmp_path / "one", **RUNS[name])
    assert ("rankme" in expected[0]) == (name == "infonce")
    assert {key for step in expected for key in step} <= documented_metrics()
    cut = {"batch_size": 2, "gradient_accumulation_steps": 2}
    run(base, data, tmp_path / "cut", 2, **RUNS[name], **cut)
    assert_close_logs(tmp_path / "cut", tmp_path / "one")
    stopped = {"save_every_n_steps": 1, "model__lora_dropout": 0.1, **RUNS[name]}
    run(base, data, tmp_path / "straight", **stopped)
    run(base, data, tmp_path / "stopped", **{**stopped, "stop__steps": 3})
    run(base, data, tmp_path / "stopped", **stopped, resume_from_checkpoint=True)
    assert read_untimed(tmp_path / "stopped") == read_untimed(tmp_path / "straight")
