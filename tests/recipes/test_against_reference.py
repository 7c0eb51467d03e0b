"""The recipe equals a slow version of the paper's algorithm at every step and slot."""

import pytest
import torch
from torchtune.models.llama3_2 import llama3_2, lora_llama3_2
from torchtune.modules.peft import get_adapter_params, set_trainable_params

from erjepa.datasets import StepSampler, paired_dataset
from erjepa.training.model.adapters import initial_adapter_state
from tests.harness.models import BASE_SHAPE, base_weights
from tests.harness.runs import (
    BUILDER,
    FULL_BUILDER,
    read_metrics,
    small_config,
    train,
    trained_weights,
)
from tests.reference.slow_training import train_slowly

SHAPE = {**BASE_SHAPE, "num_layers": 2}
SETTINGS = {"budget": 5, "neighbors": 3, "capacity": 14}


@pytest.fixture(scope="module")
def base(deep_base):
    return deep_base


def reference_model(base, output_dir, builder):
    if builder == FULL_BUILDER:
        decoder = llama3_2(**SHAPE)
        decoder.load_state_dict(base_weights(base, output_dir))
        return decoder
    decoder = lora_llama3_2(
        ["q_proj", "k_proj", "v_proj", "output_proj"],
        apply_lora_to_mlp=True,
        lora_rank=4,
        lora_alpha=8,
        **SHAPE,
    )
    adapters = initial_adapter_state(decoder, 82)
    decoder.load_state_dict({**base_weights(base, output_dir), **adapters})
    set_trainable_params(decoder, get_adapter_params(decoder))
    return decoder


def result(recipe):
    memory = recipe._memory.replay.memory
    return {
        "projection": memory.address_table.projection,
        "top_k": memory.address_table.top_k,
        "ids": memory.example_ids.tolist(),
        "scores": memory.scores.tolist(),
        "counts": memory.replay_counts.tolist(),
        "weights": trained_weights(recipe),
    }


@pytest.mark.parametrize(
    ("selection", "builder", "lr", "tolerance"),
    [
        ("content", BUILDER, 3e-3, 1e-4),
        ("hard", FULL_BUILDER, 1e-3, 1e-3),
    ],
    ids=["content, adapters", "hard, every weight"],
)
def test_recipe_equals_the_slow_algorithm(
    base, data, tmp_path, selection, builder, lr, tolerance
):
    cfg = small_config(
        base,
        data,
        tmp_path / "out",
        model=builder,
        optimizer__lr=lr,
        replay__selection=selection,
        replay__weight=0.7,
        clip_grad_norm=2.0,
        log_replay_gradients_every_n_steps=1,
        dataset__max_examples=22,
        **{f"replay__{name}": value for name, value in SETTINGS.items()},
    )
    (fast,) = train(cfg, 1, result)

    tokenizer = cfg.tokenizer.build()
    dataset = paired_dataset(tokenizer, source=str(data), max_examples=22)
    sampler = StepSampler(
        22,
        batch_size=4,
        gradient_accumulation_steps=1,
        world_size=1,
        rank=0,
        seed=82,
    )
    steps = []
    for epoch in range(2):
        sampler.set_position(epoch)
        steps += list(sampler)
    decoder = reference_model(base, tmp_path / "reference", builder)
    expected, memory = train_slowly(
        decoder,
        dataset,
        steps,
        predictor_ids=[266],
        selection=selection,
        beta=0.7,
        projection=fast["projection"],
        top_k=fast["top_k"],
        lr=lr,
        warmup=2,
        num_training_steps=len(steps),
        max_norm=2.0,
        **SETTINGS,
    )
    metrics = read_metrics(tmp_path / "out")
    assert len(metrics) == len(expected) == 12
    assert "replay_loss_after" in expected[-1] and "gradient_cosine" in expected[1]
    assert metrics[-1]["memory_size"] == 14 and metrics[-1]["replayed"] == 5
    for step, (mine, slow) in enumerate(zip(metrics, expected, strict=True), start=1):
        for name, value in slow.items():
            rounding = 2e-6 if name == "replay_benefit" else 0  # of two losses
            assert mine[name] == pytest.approx(value, rel=tolerance, abs=rounding), (
                f"{name}, step {step}"
            )
    assert fast["ids"] == [slot["example"] for slot in memory.slots]
    assert fast["counts"] == [slot["count"] for slot in memory.slots]
    assert max(fast["counts"]) > 0
    scores = [slot["score"].item() for slot in memory.slots]
    assert fast["scores"] == pytest.approx(scores, rel=tolerance)
    for name, weight in fast["weights"].items():
        if name != "predictor":
            torch.testing.assert_close(
                weight, decoder.get_parameter(name), rtol=1e-3, atol=tolerance / 10
            )
