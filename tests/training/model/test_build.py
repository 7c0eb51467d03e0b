"""Errors of models: of a checkpoint of another one, the first of each kind of difference."""

import pytest
import torch

from erjepa.commands.doctor.memory import LiveBytes
from erjepa.evaluation.model import empty_model, load_weights
from erjepa.training.model.build import build_model, require_same_model
from tests.harness.models import small_decoder
from tests.harness.runs import make_config

MODEL = {"a": torch.empty(2, 3), "b": torch.empty(4), "c": torch.empty(5)}


def test_the_same_model():
    require_same_model(
        MODEL, {name: torch.ones_like(MODEL[name]) for name in MODEL}, ""
    )


def test_all_differences_in_one_message():
    weights = {"y": torch.empty(1), "a": torch.empty(3, 2), "c": torch.empty(6)}
    with pytest.raises(ValueError) as error:
        require_same_model(MODEL, {**weights, "z": torch.empty(1)}, "/base")
    assert str(error.value).startswith(
        "/base holds another model than the config's: it lacks b (1 such); it has y (2 "
        "such); of another shape, a is [3, 2], not [2, 3] (2 such). Name"
    )


def of_a_fixed_rank(lora_alpha=8):
    return small_decoder(lora_attn_modules=["q_proj"])


def test_a_builder_of_adapters_takes_their_rank():
    model = f"model={__name__}.of_a_fixed_rank"
    removed = [f"~model.{key}" for key in make_config([], "tiny_synth").model.arguments]
    cfg = make_config([*removed, model], "tiny_synth")
    with pytest.raises(ValueError, match="adds adapters and has no parameter lora_ra"):
        build_model(cfg, torch.device("cpu"), 1, "sdpa")


def test_layers_of_a_size_that_cannot_be_quantized():
    cfg = make_config(["model.quantize_base=True"], "smollm2_135m_continual")
    message = (
        "model.quantize_base=True: NF4 needs a multiple of 16,384 .* set it to Fal"
    )
    with pytest.raises(ValueError, match=message):
        build_model(cfg, torch.device("cpu"), 1, "sdpa")
    with pytest.raises(ValueError, match=message):
        empty_model(cfg, torch.device("cpu"))


class OnMeta(LiveBytes):
    """Live bytes of the meta device, in place of a GPU's."""

    def _count(self, storage):
        if storage.device.type == "meta":
            super()._count(storage)


def test_an_evaluation_needs_room_for_one_model():
    """Also to load another checkpoint after the first."""
    cfg = make_config([], "tiny_synth")
    with OnMeta([]) as live:
        model = empty_model(cfg, torch.device("meta"))
        for _ in range(2):
            load_weights(model, cfg, None)
    size = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    assert size < live.peak < 1.3 * size
