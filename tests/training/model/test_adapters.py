"""Initial adapters depend on the seed alone; merging runs on the run's device."""

import pytest
import torch
from torchtune.modules.peft import get_merged_lora_ckpt

from erjepa.training.model import adapters
from erjepa.training.model.adapters import initial_adapter_state, merge_adapters
from tests.harness.models import small_decoder
from tests.harness.pretended_device import pretended_device


def test_initial_adapters_follow_from_the_seed_alone():
    decoder = small_decoder(b_is_zero=True)
    first = initial_adapter_state(decoder, seed=82)
    torch.rand(7)  # what the process drew before does not matter
    again = initial_adapter_state(decoder, seed=82)
    other = initial_adapter_state(decoder, seed=23)
    assert first.keys() == {n for n, p in decoder.named_parameters() if p.requires_grad}
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        if "lora_b" in name:
            assert not weight.any()
        else:
            assert not torch.equal(weight, other[name])
            # torchtune's own initialization: uniform within 1 / sqrt(in_dim).
            bound = weight.shape[1] ** -0.5
            assert 0.9 * bound < weight.abs().max() <= bound


@pytest.mark.parametrize("has_magnitude", [False, True], ids=["LoRA", "DoRA"])
def test_adapters_are_merged_on_the_device(monkeypatch, has_magnitude):
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(shape, generator=generator)

    weights = {"norm.scale": drawn(8)}
    for layer in ("layers.0.attn.q_proj", "layers.1.mlp.w1"):
        weights[f"{layer}.weight"] = drawn(16, 8).bfloat16()
        weights[f"{layer}.lora_a.weight"] = drawn(4, 8)
        weights[f"{layer}.lora_b.weight"] = drawn(16, 4)
        if has_magnitude:
            weights[f"{layer}.magnitude"] = drawn(16)
    copies = {name: weight.clone() for name, weight in weights.items()}
    expected = get_merged_lora_ckpt(copies, rank=4, alpha=8)
    devices = []

    def merge(state, **kwargs):
        devices.extend(weight.device.type for weight in state.values())
        return get_merged_lora_ckpt(state, **kwargs)

    monkeypatch.setattr(adapters, "get_merged_lora_ckpt", merge)
    with pretended_device():
        merged = merge_adapters(weights, torch.device("cuda"), rank=4, alpha=8)
        assert {weight.device.type for weight in merged.values()} == {"cpu"}
    assert set(devices) == {"cuda"}
    assert merged.keys() == expected.keys()
    for name, weight in merged.items():
        dtype = torch.bfloat16 if "norm" not in name else torch.float32
        assert torch.equal(weight, expected[name].to(dtype)), name
