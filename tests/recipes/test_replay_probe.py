"""Measuring an update does not change it, on any number of ranks.

The measures themselves are compared with the slow algorithm in ``test_against_reference.py``.
"""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from tests.harness.runs import TIMED, read_metrics, small_config, train

PROBED = {
    "gradient_cosine",
    "replay_gradient_norm",
    "replay_gradient_outside",
    "replay_benefit",
    "replay_benefit_expected",
    "replay_loss_before",
    "replay_loss_after",
}


def run(base, data, output_dir, world_size=1, **overrides):
    settings = {"replay__weight": 0.7, "batch_size": 4 // world_size, "stop__steps": 6}
    settings |= overrides
    train(small_config(base, data, output_dir, **settings), world_size)
    return read_metrics(output_dir)


@pytest.fixture(scope="module")
def untied(base, tmp_path_factory):
    """The base with an output projection of its own."""
    folder = shutil.copytree(base, tmp_path_factory.mktemp("untied") / "base")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# The loss of a whole step runs its micro-batches twice, the first time without output projection,
# which has dropout here.
TWICE = {"loss__distance": "infonce", "gradient_accumulation_steps": 2, "batch_size": 2}
UNTIED = {
    "model": "torchtune.models.llama3_1.lora_llama3_1",
    "model__apply_lora_to_output": True,
}


@pytest.mark.parametrize("more", [{}, {**TWICE, **UNTIED}], ids=["once", "twice"])
def test_a_probed_run_is_the_run_without(base, untied, data, tmp_path, more):
    """Dropout included."""
    base = untied if more else base
    dropout = {"model__lora_dropout": 0.3, **more}
    plain = run(base, data, tmp_path / "plain", **dropout)
    every_second = {"log_replay_gradients_every_n_steps": 2}
    probed = run(base, data, tmp_path / "probed", **dropout, **every_second)
    for step, (mine, expected) in enumerate(zip(probed, plain, strict=True), start=1):
        extra = mine.keys() - expected.keys()
        assert extra == (PROBED if step % 2 == 0 else set())
        for name in expected.keys() - TIMED:
            assert mine[name] == expected[name], f"{name} at step {step}"
    updates = [m for m in probed if "replay_loss_after" in m]
    assert all(m["replay_loss_after"] != m["replay_loss_before"] for m in updates)


@pytest.mark.parametrize("world_size", [2])
@pytest.mark.slow
def test_ranks_measure_alike(base, data, tmp_path, world_size):
    every = {"log_replay_gradients_every_n_steps": 1, "replay__budget": 3}
    one = run(base, data, tmp_path / "one", **every)
    more = run(base, data, tmp_path / "more", world_size, **every)
    for mine, expected in zip(more[1:], one[1:], strict=True):
        assert PROBED <= mine.keys()
        for name in (*PROBED, "loss", "grad_norm"):
            rounding = 2e-6 if name == "replay_benefit" else 0  # of two losses
            assert mine[name] == pytest.approx(expected[name], rel=1e-4, abs=rounding)
    assert not PROBED & more[0].keys()  # the memory is empty


def test_current_batch_has_the_gradient_of_the_new_pairs(base, data, tmp_path):
    """Of every three steps the first one replays, and is measured."""
    control = {"replay__selection": "current_batch", "loss__jepa_every": 3}
    every = {"log_replay_gradients_every_n_steps": 3}
    metrics = run(base, data, tmp_path, **control, **every)
    found = {
        step: one["gradient_cosine"]
        for step, one in enumerate(metrics, start=1)
        if "gradient_cosine" in one
    }
    assert found == pytest.approx({1: 1.0, 4: 1.0}, abs=1e-6)


def test_a_run_without_views_is_measured_as_often(base, data, tmp_path):
    """All its steps replay, whatever ``loss.jepa_every``."""
    no_views = {"loss__jepa_weight": 0, "replay__score": "lm", "loss__jepa_every": 3}
    no_views["replay__selection"] = "uniform"
    every = {"log_replay_gradients_every_n_steps": 3}
    metrics = run(base, data, tmp_path, **no_views, **every)
    assert ["gradient_cosine" in step for step in metrics] == 2 * [False, False, True]
