"""Full fine-tuning: every weight is trained, exported and resumed.

The gradient of a step equals torch's for the plain model, one pair at a time, on one rank and on
two; weights are float32 and compute in bfloat16; a killed and resumed run equals an uninterrupted
one bit for bit; exported weights in transformers equal the live model. The comparison with the slow
algorithm is in ``test_against_reference.py``.
"""

import functools

import pytest
import torch
from safetensors.torch import load_file
from torchtune.models.llama3_2 import llama3_2

from erjepa.checkpoints import checkpoint
from erjepa.datasets import paired_dataset
from tests.harness.models import BASE_SHAPE, base_weights
from tests.harness.runs import (
    FULL_BUILDER,
    assert_close_logs,
    assert_resumes,
    at_start,
    evaluate,
    kill_at_step,
    paired,
    small_config,
    state,
    train,
    trained_weights,
    watch_gradients,
)
from tests.harness.transformers_models import from_pretrained, logits_of
from tests.reference.three_forwards import reference_loss


def config(base, data, output_dir, *more, **overrides):
    settings = {"model": FULL_BUILDER, "optimizer__lr": 1e-3, **overrides}
    return small_config(base, data, output_dir, *more, **settings)


ONE_STEP = {
    "stop__steps": 1,
    "optimizer__lr": 1e-2,
    "lr_scheduler__num_warmup_steps": 0,
}


@pytest.mark.parametrize("adapters_before", [False, True])
def test_the_next_run_continues_whole_weights(base, data, tmp_path, adapters_before):
    """Those of a run of full fine-tuning, or the merged ones of a run with adapters."""
    first = {**ONE_STEP, "replay__selection": "uniform"}
    before = small_config if adapters_before else config
    train(before(base, data, tmp_path / "a", **first))
    again = {**first, "continue_from": tmp_path / "a"}
    found = at_start(config(base, data, tmp_path / "b", **again), 1, state)
    (path,) = (tmp_path / "a").glob("epoch_0*/model*.safetensors")
    whole = load_file(path)["model.layers.0.self_attn.v_proj.weight"]
    assert not whole.equal(base_weights(base, tmp_path)["layers.0.attn.v_proj.weight"])
    assert found["weights"]["layers.0.attn.v_proj.weight"].equal(whole.float())
    assert (found["memory"]["example_ids"] < 0).sum() == 4


def test_the_next_run_continues_the_average(base, data, tmp_path):
    """The second update of the average, whose decay is 3/12; the weights stay those of the first
    run."""
    name = "model.layers.0.self_attn.v_proj.weight"
    first = {**ONE_STEP, "ema_decay": 0.9}
    train(config(base, data, tmp_path / "a", **first))
    again = {**first, "optimizer__lr": 0.0, "continue_from": tmp_path / "a"}
    train(config(base, data, tmp_path / "b", **again))

    def load(pattern):
        (path,) = tmp_path.glob(f"{pattern}/model*.safetensors")
        return load_file(path)[name].float()

    last, before = load("a/epoch_0*"), load("a/epoch_0*/ema")
    assert not last.equal(before)
    expected = before.lerp(last, 0.75)
    torch.testing.assert_close(load("b/epoch_0*/ema"), expected, rtol=1e-6, atol=1e-8)


def test_a_missing_run_is_named(base, data, tmp_path):
    with pytest.raises(FileNotFoundError, match="^init_from=nowhere does not exist"):
        train(config(base, data, tmp_path, init_from="nowhere"))


def test_adapters_cannot_continue_whole_weights(base, data, tmp_path):
    train(config(base, data, tmp_path / "a", stop__steps=1))
    cfg = small_config(base, data, tmp_path / "b", continue_from=tmp_path / "a")
    with pytest.raises(ValueError, match="^continue_from=.*: the run trained all weig"):
        train(cfg)


def plain_model(base, output_dir):
    """The base as torchtune has it."""
    decoder = llama3_2(**BASE_SHAPE)
    decoder.load_state_dict(base_weights(base, output_dir / "reference"))
    return decoder


def pairs_of(cfg, data, count):
    tokenizer = cfg.tokenizer.build()
    return paired_dataset(tokenizer, source=str(data), max_examples=count)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_gradient_of_every_weight(base, data, tmp_path, world_size):
    one_step = {
        "dataset__max_examples": 8,
        "batch_size": 4 // world_size,
        "gradient_accumulation_steps": 2,
        "epochs": 1,
        "optimizer": "torch.optim.SGD",
        "optimizer__lr": 1.0,
        "lr_scheduler__num_warmup_steps": 0,
        "clip_grad_norm": "null",
    }
    cfg = config(base, data, tmp_path, **one_step)
    (after, *_) = train(cfg, world_size, trained_weights)

    decoder = plain_model(base, tmp_path)
    predictor = decoder.tok_embeddings.weight[[266]].detach().clone().requires_grad_()
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    loss, *_ = reference_loss(
        decoder,
        list(pairs_of(cfg, data, 8)),
        views="shared",
        predictor_ids=[266],
        predictor_rows=predictor,
    )
    loss.backward()
    before["predictor"] = predictor.detach()
    expected = {name: p.grad for name, p in decoder.named_parameters()}
    expected["predictor"] = predictor.grad
    assert after.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 1e-3, name
        torch.testing.assert_close(
            before[name] - after[name], gradient, rtol=1e-3, atol=1e-5, msg=name
        )


def test_float32_weights_compute_in_bfloat16(base, data, tmp_path, monkeypatch):
    seen = watch_gradients(monkeypatch)

    def dtypes(run):
        states = run._optimizer.state.values()
        return {
            "held": {p.dtype for p in run._model.parameters()},
            "trained": all(p.requires_grad for p in run._model.parameters()),
            "moments": {s[name].dtype for s in states for name in s if name != "step"},
            **seen,
        }

    for world_size in (1, 2):
        output_dir = tmp_path / str(world_size)
        overrides = {"dtype": "bf16", "epochs": 1, "max_steps_per_epoch": 3}
        overrides |= {"batch_size": 4 // world_size, "gradient_accumulation_steps": 2}
        cfg = config(base, data, output_dir, **overrides)
        for found in train(cfg, world_size, dtypes):
            assert found == {
                "held": {torch.float32},
                "trained": True,
                "moments": {torch.float32},
                "gradients": {torch.float32},
                "hidden": {torch.bfloat16},
                "rounded": {False},
            }
        exported = load_file(output_dir / "epoch_0/model-00001-of-00001.safetensors")
        assert {weight.dtype for weight in exported.values()} == {torch.bfloat16}
    # The gradients of parts of a step are rounded apart from each other.
    names = ("loss", "lm_loss", "grad_norm")
    assert_close_logs(tmp_path / "2", tmp_path / "1", names, rel=0.02, absolute=0)


@pytest.mark.parametrize(
    ("world_size", "dtype"),
    [(2, "bf16"), (1, "bf16"), (1, "fp32")],
)
@pytest.mark.slow
def test_killed_and_resumed(base, data, tmp_path, world_size, dtype):
    settings = {"dtype": dtype, "save_every_n_steps": 2, "stop__steps": 4}
    run = functools.partial(config, base, data, **settings)
    assert_resumes(run, tmp_path, kill_at_step(4), world_size)
    whole, part = tmp_path / "whole", tmp_path / "part"
    saved = torch.load(part / "epoch_0_step_2" / checkpoint.RECIPE_STATE)["weights"]
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    file = "epoch_0_step_4/model-00001-of-00001.safetensors"
    assert (part / file).read_bytes() == (whole / file).read_bytes()


def test_checkpoints_leave_and_are_scored(base, data, tmp_path):
    """In transformers, and by the evaluation; those at FLOPs and the best as well."""
    settings = {
        **paired("eval_dataset", data),
        "optimizer__lr": 1e-2,
        "epochs": 1,
        "checkpoint_at_flops": "[1.0]",
        "validation__size": 4,
        "keep_best": True,
        "max_new_tokens": 4,
        "eval_batch_size": 44,
    }
    without = "~eval_dataset.subset"
    cfg = config(base, data, tmp_path, without, **settings)
    (logits,) = train(cfg, 1, lambda run: logits_of(run._model.decoder))
    assert (logits_of(from_pretrained(base)) - logits).abs().max() > 0.1
    for name in ("epoch_0", "best"):
        loaded = logits_of(from_pretrained(tmp_path / name))
        torch.testing.assert_close(loaded, logits, rtol=0, atol=1e-4)
    first = logits_of(from_pretrained(tmp_path / "flops_0"))
    assert (first - logits).abs().max() > 1e-2
    assert not list(tmp_path.glob("*/adapter*"))
    card = (tmp_path / "epoch_0" / "README.md").read_text()
    assert (
        "| trained | every weight (full fine-tuning) |" in card and "LoRA" not in card
    )
    summary = evaluate(cfg)
    assert summary.weights == "full" and summary.checkpoint.endswith("epoch_0")
    with pytest.raises(ValueError, match="merged=True, but the model has no adapters"):
        evaluate(config(base, data, tmp_path, without, merged=True, **settings))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"save_adapter_weights_only": True}, "save_adapter_weights_only=True, but"),
        ({"train_predictor_tokens": False}, "train_predictor_tokens=False: a model"),
    ],
)
def test_keys_that_are_for_adapters(base, data, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        train(config(base, data, tmp_path, **overrides))


def test_resuming_keeps_what_is_trained(base, data, tmp_path):
    train(small_config(base, data, tmp_path, stop__steps=1))
    resumed = {"resume_from_checkpoint": True, "stop__steps": 2}
    with pytest.raises(ValueError, match="lora_llama3_2 there, .*llama3_2 here"):
        train(config(base, data, tmp_path, **resumed))
    resumed["resume_changes"] = "[model,optimizer,trainable_dtype]"
    with pytest.raises(ValueError, match="starts from holds another model than"):
        train(config(base, data, tmp_path, **resumed))
