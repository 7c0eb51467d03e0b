"""O-LoRA's penalty keeps a new adapter orthogonal to those that are merged into the base."""

import pytest
import torch

from erjepa.checkpoints import checkpoint
from tests.harness.runs import (
    adapter_of,
    assert_close_logs,
    assert_same,
    read_metrics,
    small_config,
    train,
    trained_weights,
    whole,
)

SETTINGS = {"batch_size": 8, "epochs": 1, "replay__weight": 0, "loss__jepa_weight": 0}
WEIGHT = 0.5


@pytest.fixture(scope="module")
def earlier(base, data, tmp_path_factory):
    """Checkpoints of two runs, each with an adapter of its own over the base."""
    folder = tmp_path_factory.mktemp("earlier")
    merged = []
    for seed in (1, 2):
        given = f"[{','.join(map(str, merged))}]"
        cfg = small_config(
            *(base, data, folder / str(seed)),
            **{**SETTINGS, "seed": seed, "base_adapters": given, "stop__steps": 2},
        )
        train(cfg)
        merged += checkpoint.checkpoints(folder / str(seed))
    return merged


@pytest.fixture
def over(base, data, earlier):
    """Makes the config of a run over both adapters."""
    merged = f"[{','.join(map(str, earlier))}]"

    def config(output_dir, **overrides):
        settings = {"orthogonal_weight": WEIGHT, "base_adapters": merged}
        return small_config(
            base, data, output_dir, **{**SETTINGS, **settings, **overrides}
        )

    return config


def slow_penalty(weights, earlier):
    """The penalty of weights by name, product by product."""
    total = torch.zeros(())
    for name, a in weights.items():
        for path in earlier if name.endswith("lora_a.weight") else ():
            for row in a:
                for other in adapter_of(path)[name]:
                    total = total + (row * other).sum().abs()
    return total


# Of the 4 rows of A, the third of 3 ranks has none.
@pytest.mark.parametrize("world_size", [1, 3])
def test_its_gradient_is_that_of_the_penalty(over, earlier, tmp_path, world_size):
    def added(recipe):
        weights = trained_weights(recipe)
        for weight in recipe._model.parameters():
            weight.grad = torch.ones_like(weight) if weight.requires_grad else None
        found = recipe._penalty.add_gradient()["orthogonal_loss"]
        gradients = {
            name.removeprefix("decoder."): whole(weight.grad)
            for name, weight in recipe._model.named_parameters()
            if weight.requires_grad
        }
        return weights, found, gradients

    cfg = over(tmp_path, stop__steps=1)
    weights, found, gradients = train(cfg, world_size, added)[0]
    for weight in weights.values():
        weight.requires_grad_()
    expected = slow_penalty(weights, earlier)
    (WEIGHT * expected).backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, weight in weights.items():
        wanted = torch.ones_like(weight)
        if "lora_a" in name:
            assert weight.grad.abs().min() > 0
            wanted += weight.grad
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-5, atol=1e-5)


def test_a_run_learns_an_orthogonal_adapter(over, earlier, tmp_path):
    """By any number of ranks; a run without it has the same first step."""

    def trained(name, world_size=1, **overrides):
        cfg = over(tmp_path / name, optimizer__lr=2e-2, **overrides)
        return train(cfg, world_size, trained_weights)[0], read_metrics(tmp_path / name)

    weights, log = trained("run")
    without, other = trained("without", orthogonal_weight=0.0)
    first = log[0]["orthogonal_loss"]
    assert float(slow_penalty(weights, earlier)) < first / 2
    assert float(slow_penalty(without, earlier)) > first
    assert "orthogonal_loss" not in other[0]
    assert other[0]["loss"] == log[0]["loss"]
    assert other[0]["grad_norm"] < log[0]["grad_norm"]
    trained("ranks", 2, gradient_accumulation_steps=2, batch_size=2)
    assert_close_logs(tmp_path / "ranks", tmp_path / "run")


def test_without_merged_adapters_it_does_nothing(over, tmp_path):
    runs = [
        train(over(tmp_path / str(w), base_adapters="null", orthogonal_weight=w))
        and read_metrics(tmp_path / str(w))
        for w in (0.0, WEIGHT)
    ]
    assert [step["loss"] for step in runs[0]] == [step["loss"] for step in runs[1]]
    assert "orthogonal_loss" not in runs[1][0]


def test_a_resumed_run_keeps_it(over, tmp_path):
    (expected,) = train(over(tmp_path / "whole"), 1, trained_weights)
    train(over(tmp_path / "part", stop__steps=2))
    resumed = {"resume_from_checkpoint": True, "orthogonal_weight": 0.0}
    with pytest.raises(ValueError, match=r"orthogonal_weight: 0\.5 there, 0\.0"):
        train(over(tmp_path / "part", **resumed))
    del resumed["orthogonal_weight"]
    (found,) = train(over(tmp_path / "part", **resumed), 1, trained_weights)
    assert_same(found, expected)
