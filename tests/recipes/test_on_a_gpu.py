"""The recipes on a GPU, run as users run them, against the CPU."""

import pytest
import torch

from erjepa.checkpoints import checkpoint
from tests.harness.cases import RUNS
from tests.harness.runs import INVARIANT, finish, read_metrics, start_tune

pytestmark = pytest.mark.cuda

SETTINGS = [
    "batch_size=8",
    "row_length=256",
    "dataset.size=48",
    "eval_dataset.size=40",
    "task=exact_match",
    "replay.capacity=12",
    "lr_scheduler.num_warmup_steps=0",
    "epochs=2",
    "stop.steps=4",
]


def tune(recipe, output_dir, device, *overrides):
    keys = [*SETTINGS, f"device={device}", f"output_dir={output_dir}", *overrides]
    folder = output_dir.parent
    finish(start_tune(recipe, "--config", "tiny_synth", *keys, cwd=folder))


def train(output_dir, device, *overrides):
    tune("erjepa_recipe", output_dir, device, *overrides)
    return read_metrics(output_dir)


def assert_close(found, expected, tolerance):
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        for name in INVARIANT:
            torch.testing.assert_close(
                one.get(name, 0.0),
                other.get(name, 0.0),
                rtol=tolerance,
                atol=tolerance,
                msg=lambda text, name=name: f"{name}: {text}",
            )


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_that_of_the_cpu(name, tmp_path):
    keys = [*RUNS[name], "model.lora_dropout=0.0", "dtype=fp32"]  # dropout draws differ
    on_gpu = train(tmp_path / "gpu", "cuda", *keys)
    keys.append("enable_activation_offloading=False")  # of a GPU alone
    assert_close(on_gpu, train(tmp_path / "cpu", "cpu", *keys), 1e-3)


@pytest.mark.parametrize(
    ("key", "tolerance"), [("compile=True", 1e-3), ("dtype=bf16", 5e-2)]
)
def test_a_faster_run_is_that_of_float32(key, tolerance, tmp_path):
    keys = ["replay.selection=uniform"]  # rounding does not change what is drawn
    found = train(tmp_path / "fast", "cuda", *keys, key)
    assert_close(found, train(tmp_path / "plain", "cuda", *keys), tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-4), ("bf16", 2e-2)])
def test_a_resumed_run_continues_the_same(dtype, tolerance, tmp_path):
    """The same pairs and draws of dropout; kernels may add in another order."""
    keys = [f"dtype={dtype}", "model.lora_dropout=0.1", "ema_decay=0.9"]
    keys.append("replay.selection=uniform")
    whole = train(tmp_path / "whole", "cuda", *keys)
    train(tmp_path / "cut", "cuda", *keys, "stop.steps=2")
    resumed = train(tmp_path / "cut", "cuda", *keys, "resume_from_checkpoint=True")
    assert_close(resumed, whole, tolerance)


def test_answers_are_those_of_the_cpu(tmp_path):
    train(tmp_path / "run", "cuda")
    *_, last = checkpoint.checkpoints(tmp_path / "run")
    lines = []
    for device in ("cuda", "cpu"):
        scores = tmp_path / device
        tune("erjepa_eval", scores, device, f"checkpoint_dir=[{last}]")
        (path,) = scores.glob("evaluation/*/predictions.jsonl")
        lines.append(path.read_text().splitlines())
    differing = sum(one != other for one, other in zip(*lines, strict=True))
    assert len(lines[0]) == 40 and differing <= 2  # ties of float32
