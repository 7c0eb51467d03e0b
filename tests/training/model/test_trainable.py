"""Trainable weights, adapters or the whole model, and their export."""

import pytest
import torch
from torchtune import training
from torchtune.models.llama3_2 import llama3_2

from erjepa.configs import Component
from erjepa.training.model.adapters import initial_adapter_state
from erjepa.training.model.trainable import TrainableWeights
from tests.harness.models import small_decoder

ARGUMENTS = {
    "lora_rank": 4,
    "lora_alpha": 8,
    "lora_attn_modules": ["q_proj", "v_proj"],
    "apply_lora_to_mlp": True,
    "lora_dropout": 0.1,
}
BUILDER = Component("torchtune.models.llama3_2.lora_llama3_2", ARGUMENTS)
LORA = {name: ARGUMENTS[name] for name in ("lora_attn_modules", "apply_lora_to_mlp")}
NO_LORA = {"lora_attn_modules", "apply_lora_to_mlp", "lora_rank", "lora_alpha"}


def full_decoder():
    def builder(**kwargs):
        return llama3_2(**{k: v for k, v in kwargs.items() if k not in NO_LORA})

    return small_decoder(builder=builder).requires_grad_(True)


def trainable(decoder, trainable_dtype=torch.float32, dtype=torch.float32):
    return TrainableWeights(
        decoder, BUILDER, trainable_dtype=trainable_dtype, dtype=dtype
    )


def trained_names(decoder):
    return {name for name, p in decoder.named_parameters() if p.requires_grad}


def base_of(decoder):
    """Weights of the base, each with a value of its own."""
    state = decoder.state_dict()
    return {
        name: torch.randn_like(w) for name, w in state.items() if "lora" not in name
    }


def test_adapters_are_trained_where_there_are_any():
    decoder = small_decoder(**LORA).requires_grad_(True)
    found = trainable(decoder)
    assert found.has_adapters
    adapters = {name for name, _ in decoder.named_parameters() if "lora" in name}
    assert trained_names(decoder) == adapters != set()


def test_every_weight_is_trained_without_adapters():
    decoder = full_decoder().bfloat16()
    found = trainable(decoder, dtype=torch.bfloat16)
    assert not found.has_adapters
    named = dict(decoder.named_parameters())
    assert trained_names(decoder) == named.keys()
    assert {p.dtype for p in named.values()} == {torch.float32}


@pytest.mark.parametrize("held", [torch.float32, torch.bfloat16])
def test_adapters_are_held_in_their_dtype_and_the_base_in_its_own(held):
    decoder = small_decoder(**LORA).bfloat16()
    trainable(decoder, held, torch.bfloat16)
    parts = [set(), set()]
    for weight in decoder.parameters():
        parts[weight.requires_grad].add(weight.dtype)
    assert parts == [{torch.bfloat16}, {held}]


@pytest.mark.parametrize("adapter_only", [True, False])
def test_an_adapter_is_exported_with_what_peft_asks_for(adapter_only):
    decoder = small_decoder(**LORA)
    weights = {name: w.clone() for name, w in decoder.state_dict().items()}
    layer = "layers.1.attn.q_proj"
    a, b = (weights[f"{layer}.lora_{part}.weight"].clone() for part in "ab")
    merged = weights[f"{layer}.weight"] + 8 / 4 * b @ a
    found = trainable(decoder)
    adapter = {name: weights[name] for name in trained_names(decoder)}
    content = found.export(weights, torch.device("cpu"), adapter_only=adapter_only)
    assert content[training.ADAPTER_KEY].keys() == adapter.keys()
    assert all(content[training.ADAPTER_KEY][n].equal(w) for n, w in adapter.items())
    config = content[training.ADAPTER_CONFIG]
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 8, 0.1)
    assert config["target_modules"] == ["q_proj", "v_proj", "w1", "w2", "w3"]
    assert (training.MODEL_KEY in content) is not adapter_only
    if not adapter_only:
        model = content[training.MODEL_KEY]
        assert not any("lora" in name for name in model)
        torch.testing.assert_close(model[f"{layer}.weight"], merged)


def with_defaults(lora_rank=4, lora_alpha=8):
    return small_decoder(**LORA)


def test_rank_and_alpha_are_those_of_the_builder_if_none_are_given():
    builder = Component(f"{__name__}.with_defaults", {"lora_alpha": 16})
    decoder = builder.build()
    found = TrainableWeights(
        decoder, builder, trainable_dtype=torch.float32, dtype=torch.float32
    )
    content = found.export(decoder.state_dict(), torch.device("cpu"), adapter_only=True)
    config = content[training.ADAPTER_CONFIG]
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 16, 0.0)
    assert found.summary(["a"]) == {"lora_alpha": 16, "base_adapters": ["a"]}


def test_every_weight_is_exported_in_the_dtype_of_the_base_and_resumed_as_it_is():
    decoder = full_decoder()
    base = base_of(decoder)
    found = trainable(decoder, torch.float32, torch.bfloat16)
    assert not initial_adapter_state(decoder, 0)
    content = found.export(base, torch.device("cpu"), adapter_only=False)
    assert content.keys() == {training.MODEL_KEY}
    for name, weight in content[training.MODEL_KEY].items():
        assert weight.dtype == torch.bfloat16 and weight.equal(base[name].bfloat16())


def test_full_fine_tuning_casts_weights_but_not_buffers():
    """RoPE's frequencies lose positions in bfloat16."""
    decoder = full_decoder()
    decoder.register_buffer("frequencies", torch.tensor([1 / 3]))
    trainable(decoder, trainable_dtype=torch.bfloat16, dtype=torch.bfloat16)
    assert {p.dtype for p in decoder.parameters()} == {torch.bfloat16}
    assert decoder.frequencies.dtype == torch.float32
