"""Runs with transformers models: ranks, resuming, the next run, and export.

Two ranks equal one, a resumed run equals an uninterrupted one, the next run inherits the memory,
and transformers and PEFT load the exported weights.
"""

import warnings

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
)

from erjepa.checkpoints import checkpoint
from erjepa.evaluation.model import load_model
from erjepa.training.run.replay_summary import replay_summary
from tests.harness.cases import some_of
from tests.harness.runs import (
    assert_close_logs,
    assert_same,
    at_start,
    evaluate,
    make_config,
    paired,
    read_untimed,
    train,
    trained_weights,
)
from tests.harness.transformers_models import (
    FAMILIES,
    IMAGE_READERS,
    STATEFUL,
    write_folder,
    write_image_reader,
)


@pytest.fixture(
    scope="module",
    params=some_of([*FAMILIES, *STATEFUL], ["gemma3_text", "qwen3_5_text"]),
)
def folder(request, tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("model"), request.param)


def config(folder, data, output_dir, **overrides):
    settings = {
        "model.path": folder,
        "model.lora_rank": 4,
        "model.lora_alpha": 8,
        "dataset.source": data,
        "output_dir": output_dir,
        "device": "cpu",
        "dtype": "fp32",
        "batch_size": 8,
        "epochs": 1,
        "optimizer.lr": 1e-2,
        "optimizer.fused": False,
        "num_workers": 0,
        "lr_scheduler.num_warmup_steps": 1,
        # The paper's objective, so that views and predictor tokens are read too.
        "loss.jepa_weight": 1.0,
        "replay.share": "null",
        "replay.draw_from": "all",
        "replay.score": "jepa",
        # Layers of Gemma 4 read tokens, which trained embeddings do not have.
        "train_predictor_tokens": not reads_tokens(folder),
        **{key.replace("__", "."): value for key, value in overrides.items()},
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return make_config(overrides, "hf_continual")


def reads_tokens(folder):
    return "hidden_size_per_layer_input" in (folder / "config.json").read_text()


def assert_carried(path, weights):
    """The trained weights of a run have the adapter of a checkpoint."""
    adapter = torch.load(path / checkpoint.ADAPTER, weights_only=True)
    is_trained = not any("per_layer" in name for name in adapter)  # see config
    assert weights.keys() == {*adapter, *["predictor"] * is_trained}
    assert_same({name: weights[name] for name in adapter}, adapter)


@pytest.fixture(scope="module")
def whole(folder, data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("whole")
    train(config(folder, data, output_dir))
    return output_dir


def test_two_ranks_are_one(folder, data, whole, tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "FSDP2-wrapped module")
        train(config(folder, data, tmp_path, batch_size=4), 2)
    assert len(read_untimed(whole)) == 6
    names = ("loss", "replay_jepa_loss", "grad_norm")
    assert_close_logs(tmp_path, whole, names, rel=2e-4, absolute=0)


def test_a_resumed_run_is_the_whole_one(folder, data, whole, tmp_path):
    train(config(folder, data, tmp_path, stop__steps=3))
    train(config(folder, data, tmp_path, resume_from_checkpoint=True))
    assert read_untimed(tmp_path) == read_untimed(whole)


def test_what_is_exported_is_what_was_trained(folder, data, whole, tmp_path):
    path = whole / "epoch_0"
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
        merged = AutoModelForCausalLM.from_pretrained(path)(tokens).logits
        adapted = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(folder), path / "adapter"
        )(tokens).logits
        decoder = load_model(config(folder, data, tmp_path), torch.device("cpu"), path)
        attention = "dense" if decoder.reads_packed_rows else "causal"
        decoder.attend_by(attention)
        inputs = decoder.tok_embeddings(tokens) if attention == "dense" else tokens
        end, depth = torch.tensor([[37] * 37]).int(), torch.arange(37)[None]
        hidden = decoder.body(inputs, end, depth, attention)
        ours = decoder.logits(hidden[0])[None]
    assert (ours - base).abs().max() > 0.01
    torch.testing.assert_close(merged, ours, rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(adapted, ours, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
def test_a_qlora_run_is_scored_over_the_weights_that_it_trained_over(data, tmp_path):
    def weights_of(decoder):
        return {
            name: weight.detach().to(torch.float32)  # dequantized
            for name, weight in decoder.named_parameters()
        }

    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}  # for NF4
    folder = write_folder(tmp_path / "base", "qwen3", **wide)
    # NF4 of weights in another dtype than the run's would be another.
    lower = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    lower.save_pretrained(folder)
    settings = {"model__quantize_base": True, "stop__steps": 2, "num_workers": 0}
    cfg = config(folder, data, tmp_path / "run", **settings)
    (expected,) = train(cfg, 1, lambda recipe: weights_of(recipe._model.decoder))
    scored = {
        **paired("eval_dataset", data),
        "eval_dataset.max_examples": 2,
        "task": "exact_match",
        "max_new_tokens": 4,
    }
    cfg = config(folder, data, tmp_path / "run", **settings, **scored)
    assert evaluate(cfg).weights == "adapter"
    path = tmp_path / "run" / "epoch_0_step_2"
    found = weights_of(load_model(cfg, torch.device("cpu"), path))
    assert_same(found, expected)
    source = load_file(folder / "model.safetensors")
    name = "layers.0.self_attn.q_proj.weight"
    assert not torch.equal(found[f"model.{name}"], source[f"model.{name}"].float())


@pytest.mark.parametrize("kind", some_of(IMAGE_READERS, ["gemma3"]))
def test_the_adapter_of_a_model_that_reads_images_is_of_its_text_model(
    kind, data, tmp_path
):
    """PEFT puts it over the whole model, and a run starts from what PEFT saved."""
    folder = write_image_reader(tmp_path / "base", kind)
    train(config(folder, data, tmp_path / "run", stop__steps=2))
    path = tmp_path / "run" / "epoch_0_step_2"
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
        merged = AutoModelForCausalLM.from_pretrained(path)(tokens).logits
        whole = AutoModelForCausalLM.from_pretrained(folder)
        peft = PeftModel.from_pretrained(whole, path / "adapter")
        adapted = peft(tokens).logits
    # transformers has a causal language model of its own for Qwen3.5.
    readers = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.values()
    assert (type(whole) in readers) == (kind != "qwen3_5")
    assert (merged - base).abs().max() > 0.01
    torch.testing.assert_close(adapted, merged, rtol=1e-4, atol=2e-5)
    adapters = [n for n, _ in peft.named_modules() if n.endswith("lora_A")]
    assert adapters and not any("vision" in name for name in adapters)

    peft.save_pretrained(tmp_path / "peft")
    cfg = config(folder, data, tmp_path / "again", init_from=tmp_path / "peft")
    assert_carried(path, at_start(cfg, 1, trained_weights))


def test_the_next_run_starts_from_its_weights_and_memory(folder, data, whole, tmp_path):
    def read(recipe):
        return replay_summary(recipe._memory, 8), trained_weights(recipe)

    cfg = config(folder, data, tmp_path, continue_from=whole)
    said, found = at_start(cfg, 1, read)
    assert_carried(whole / "epoch_0", found)
    assert "8 pairs a step" in said


def test_an_adapter_of_peft_is_carried_on(folder, data, whole, tmp_path):
    cfg = config(folder, data, tmp_path, init_from=whole / "epoch_0" / "adapter")
    assert_carried(whole / "epoch_0", at_start(cfg, 1, trained_weights))
