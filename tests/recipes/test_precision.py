"""Float32 trainable weights over a bfloat16 base.

Checks the dtypes of weights, gradients and optimizer states, with LoRA, DoRA and QLoRA on one rank
and on two. At the paper's learning rate these adapters follow those of a float32 run, while
bfloat16 adapters hardly move.
"""

import pytest
import torch

from erjepa.training.model.adapters import initial_adapter_state
from tests.harness.cases import some_of
from tests.harness.models import write_base
from tests.harness.runs import (
    assert_close_logs,
    read_metrics,
    small_config,
    train,
    watch_gradients,
)

WIDE = {"embed_dim": 256, "intermediate_dim": 512}  # as NF4's blocks need
ADAPTERS = {
    "lora": {},
    "dora": {"model__use_dora": True},
    "qlora": {
        "model__quantize_base": True,
        **{f"model__{name}": value for name, value in WIDE.items()},
    },
}
BF16 = {"dtype": "bf16", "epochs": 1, "max_steps_per_epoch": 3}


@pytest.fixture(scope="module")
def wide_base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("wide") / "base", **WIDE)


@pytest.fixture
def base_of(adapter, request):
    """Of a shape that its adapters allow."""
    return request.getfixturevalue("wide_base" if adapter == "qlora" else "base")


@pytest.mark.parametrize("adapter", some_of(ADAPTERS, ["lora"]))
def test_trained_in_float32_computed_in_bfloat16(
    base_of, data, tmp_path, adapter, monkeypatch
):
    seen = watch_gradients(monkeypatch)

    def dtypes(run):
        trained = [p for p in run._model.parameters() if p.requires_grad]
        frozen = [p for p in run._model.parameters() if not p.requires_grad]
        states = run._optimizer.state.values()
        return {
            "predictor": run._model.predictor.dtype,
            "trained": {p.dtype for p in trained},
            "frozen": {p.dtype for p in frozen},
            "moments": {s[name].dtype for s in states for name in s if name != "step"},
            **seen,
        }

    for world_size in (1, 2):
        output_dir = tmp_path / str(world_size)
        overrides = BF16 | ADAPTERS[adapter] | {"batch_size": 4 // world_size}
        cfg = small_config(base_of, data, output_dir, **overrides)
        for found in train(cfg, world_size, dtypes):
            assert found == {
                "predictor": torch.float32,
                "trained": {torch.float32},
                "frozen": {torch.bfloat16},
                "moments": {torch.float32},
                "gradients": {torch.float32},
                "hidden": {torch.bfloat16},
                "rounded": {False},
            }
    # The gradients of parts of a step are rounded apart from each other.
    names = ("loss", "lm_loss", "grad_norm")
    assert_close_logs(tmp_path / "2", tmp_path / "1", names, rel=0.02, absolute=0)


def test_a_model_with_dora_starts_as_its_base(base, data, tmp_path):
    first = {}
    for adapter in ("lora", "dora"):
        overrides = BF16 | ADAPTERS[adapter] | {"stop__steps": 1}
        output_dir = tmp_path / adapter
        cfg = small_config(base, data, output_dir, **overrides)
        train(cfg)
        first[adapter] = read_metrics(output_dir)[0]["lm_loss"]
    assert first["dora"] == first["lora"]


@pytest.fixture(scope="module")
def updates(base, data, tmp_path_factory):
    """What ten steps at the paper's learning rate change in A, by the precision of the run."""

    def changes(run):
        start = initial_adapter_state(run._model.decoder, 82)
        return {
            name: weight.detach().float() - start[name].float()
            for name, weight in run._model.decoder.named_parameters()
            if "lora_a" in name
        }

    runs = {
        "float32": {"dtype": "fp32"},
        "mixed": {"dtype": "bf16"},
        "bfloat16": {"dtype": "bf16", "trainable_dtype": "null"},
    }
    found = {}
    for name, precision in runs.items():
        paper = {"optimizer__lr": 1e-5, "lr_scheduler__num_warmup_steps": 0}
        paper["stop__steps"] = 10
        output_dir = tmp_path_factory.mktemp(name)
        cfg = small_config(base, data, output_dir, **paper, **precision)
        (found[name],) = train(cfg, 1, changes)
    return found


def flat(update):
    return torch.cat([change.flatten() for change in update.values()])


@pytest.mark.slow
def test_small_steps_move_every_weight(updates):
    moved = {name: (flat(u) != 0).float().mean() for name, u in updates.items()}
    assert moved["mixed"] > 0.99
    assert moved["bfloat16"] < 0.1  # what the precision is for


def test_the_weights_follow_those_of_a_run_in_float32(updates):
    target = flat(updates["float32"])
    distance = {name: (flat(u) - target).norm() for name, u in updates.items()}
    assert distance["mixed"] < 0.1 * distance["bfloat16"]
