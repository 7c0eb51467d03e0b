"""A run starts from the trained weights of another run, or from a PEFT adapter."""

import json
import re
import shutil

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from erjepa.checkpoints import checkpoint
from erjepa.configs import load
from erjepa.evaluation.earlier import starts_of
from erjepa.evaluation.model import load_model
from erjepa_recipe import lora_finetune_distributed_erjepa as recipe
from tests.harness.runs import (
    adapter_of,
    assert_same,
    at_start,
    flip,
    small_config,
    train,
    trained_weights,
)

SETTINGS = {"batch_size": 8, "epochs": 1, "replay__selection": "uniform"}


def config(base, data, output_dir, **overrides):
    return small_config(base, data, output_dir, **SETTINGS, **overrides)


@pytest.fixture(scope="module")
def earlier(base, data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("earlier")
    train(config(base, data, output_dir, model__lora_dropout=0.1))
    return output_dir


@pytest.mark.parametrize("place", [".", "epoch_0"])
def test_its_first_step_has_the_weights_of_the_other_run(
    base, data, tmp_path, earlier, place
):
    cfg = config(base, data, tmp_path, init_from=earlier / place)
    assert_same(at_start(cfg, 1, trained_weights), adapter_of(earlier / "epoch_0"))


def test_a_resumed_run_does_not_start_over(base, data, tmp_path, earlier):
    overrides = {"init_from": earlier, "save_every_n_steps": 2}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    (expected,) = train(config(base, data, whole, **overrides), 1, trained_weights)
    train(config(base, data, parts, **overrides, stop__steps=2))
    (earlier / "epoch_1").mkdir()  # trained further, which does not change the start
    resumed = config(base, data, parts, **overrides, resume_from_checkpoint=True)
    (found,) = train(resumed, 1, trained_weights)
    (earlier / "epoch_1").rmdir()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    for run in (whole, parts):
        progress = checkpoint.load_progress(run / "epoch_0")
        assert progress["started_from"] == {str(earlier): "epoch_0"}


def test_a_run_that_was_moved_and_resumed_knows_its_start(
    base, data, tmp_path, earlier
):
    """Moved along with it, and trained further there."""
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(earlier, old / "first")
    keys = {"continue_from": old / "first", "save_every_n_steps": 2}
    train(config(base, data, old / "second", **keys, stop__steps=2))
    old.rename(new)
    (new / "first" / "epoch_1").mkdir()
    cfg = load(str(new / "second"), ["resume_from_checkpoint=True", "stop.steps=4"])
    train(cfg)
    *_, before, saved = checkpoint.checkpoints(new / "second")
    for path in (before, saved):
        assert starts_of(path, cfg) == [new / "first" / "epoch_0"] * 2


@pytest.mark.parametrize("place", [".", "best"])
def test_an_earlier_run_may_still_be_training(
    base, data, tmp_path, earlier, monkeypatch, place
):
    """Weights, memory and record are of the checkpoint that was the newest at the start."""
    run = shutil.copytree(earlier, tmp_path / "earlier")
    for name in ("best_step_1", "best_step_2", "epoch_1"):
        later = shutil.copytree(run / "epoch_0", tmp_path / name)
        if name != "best_step_1":
            shutil.rmtree(later / "memory")
            (later / checkpoint.ADAPTER).unlink()
    (tmp_path / "best_step_1").rename(run / "best_step_1")
    checkpoint.set_best(run / "best_step_1")
    prepare = recipe.find_serving

    def save_meanwhile(prepared):
        if dist.get_rank() == 0:
            for name in ("best_step_2", "epoch_1"):
                (tmp_path / name).rename(run / name)
            (run / "best").unlink()
            (run / "best").symlink_to("best_step_2")
        return prepare(prepared)

    monkeypatch.setattr(recipe, "find_serving", save_meanwhile)
    settings = {"continue_from": run / place, "optimizer__lr": 0.0, "stop__steps": 1}
    cfg = config(base, data, tmp_path / "run", **settings)
    found, _ = train(cfg, 2, lambda recipe: recipe._memory.earlier is not None)
    (saved,) = checkpoint.checkpoints(tmp_path / "run")
    name = {".": "epoch_0", "best": "../best_step_1"}[place]
    assert found and checkpoint.load_progress(saved)["started_from"] == {
        str(run / place): name
    }
    assert starts_of(saved, cfg) == [(run / place / name).resolve()] * 2


def test_adapters_are_merged_into_the_base(base, data, tmp_path, earlier):
    """The run's own is new, and belongs to that base: in a later run, resumed, or scored."""

    def run(name, *merged, **overrides):
        overrides |= {"base_adapters": f"[{','.join(map(str, merged))}]"}
        cfg = config(base, data, tmp_path / name, **overrides)
        train(cfg)
        return cfg, checkpoint.checkpoints(tmp_path / name)[-1]

    def exported(path):
        return load_file(path / "model-00001-of-00001.safetensors")

    still = {"optimizer__lr": 0.0, "stop__steps": 1}
    _, of_first = run("of_first", earlier, **still)
    cfg, second = run("second", earlier, stop__steps=4)
    # Each with the scale that it was trained with.
    _, of_both = run("of_both", earlier, second, **still, model__lora_alpha=2)
    assert_same(exported(of_first), exported(earlier / "epoch_0"))
    assert_same(exported(of_both), exported(second))
    # Over the base alone PEFT's adapter would be another model.
    assert (earlier / "epoch_0/adapter").is_dir() and not (second / "adapter").exists()
    card = (second / "README.md").read_text()
    assert f"adapters merged in: `{earlier}/epoch_0`" in card and "AutoPeft" not in card
    assert any(not w.equal(exported(second)[n]) for n, w in exported(of_first).items())

    # The earlier run is trained further: neither changes the base of what was trained over it.
    shutil.copytree(second, earlier / "epoch_1")
    try:
        scored = load_model(cfg, torch.device("cpu"), second).state_dict()
        again = {"base_adapters": f"[{earlier}]", "resume_from_checkpoint": True}
        train(config(base, data, tmp_path / "second", **again, stop__steps=5))
    finally:
        shutil.rmtree(earlier / "epoch_1")
    alone = load_model(cfg, torch.device("cpu"), None).state_dict()
    adapter = torch.load(second / checkpoint.ADAPTER, weights_only=True)
    assert_same({name: scored[name] for name in adapter}, adapter)
    assert all(w.equal(alone[n]) for n, w in scored.items() if n not in adapter)
    given = config(base, data, tmp_path / "second", resume_from_checkpoint=True)
    with pytest.raises(ValueError, match=rf"set base_adapters=\[{earlier}/epoch_0\]"):
        load_model(given, torch.device("cpu"), second)
    with pytest.raises(ValueError, match="base model"):
        train(given)
    shutil.copytree(second, tmp_path / "copy")  # away from its run
    for starts, expected in (
        ({"init_from": tmp_path / "copy"}, f"[{earlier}/epoch_0]"),
        ({"init_from": second}, f"[{earlier}/epoch_0]"),
        ({"base_adapters": f"[{second}]"}, f"[{earlier}/epoch_0,{second}]"),
        ({"init_from": earlier, "base_adapters": f"[{earlier}]"}, "[]"),
    ):
        with pytest.raises(
            ValueError, match=re.escape(f"set base_adapters={expected}")
        ):
            train(config(base, data, tmp_path / "other", **starts))


def test_runs_that_were_moved_have_the_base_of_their_training(
    base, data, tmp_path, earlier
):
    """By their folder, or by the new paths of the earlier runs; scored, or resumed."""
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(earlier, old / "january")
    cfg = config(
        *(base, data, old / "february"),
        base_adapters=f"[{old}/january]",
        stop__steps=1,
    )
    train(cfg)
    (name,) = (path.name for path in checkpoint.checkpoints(old / "february"))
    shutil.copytree(old / "february" / name, old / "january" / "epoch_1")
    expected = load_model(cfg, torch.device("cpu"), old / "february" / name)
    old.rename(new)
    for given in ((), (f"base_adapters=[{new}/january]",)):
        moved = load(str(new / "february"), given)
        found = load_model(moved, torch.device("cpu"), new / "february" / name)
        assert_same(found.state_dict(), expected.state_dict())
        steps = 2 + len(given)
        again = ["resume_from_checkpoint=True", f"stop.steps={steps}", *given]
        train(load(str(new / "february"), again))


def test_a_checkpoint_keeps_its_scale_away_from_its_run(base, data, tmp_path, earlier):
    copy = shutil.copytree(earlier / "epoch_0", tmp_path / "copy")
    cfg = config(base, data, tmp_path / "run", init_from=copy, model__lora_alpha=16)
    found = at_start(cfg, 1, trained_weights)
    scored = load_model(cfg, torch.device("cpu"), copy).state_dict()
    for name, weight in torch.load(copy / checkpoint.ADAPTER).items():
        expected = weight / 2 if "lora_b" in name else weight  # alpha was 8
        assert torch.equal(found[name], expected), name
        assert torch.equal(scored[name], expected), name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"init_from": "null", "base_adapters": "[nowhere]"}, "base_adapters=nowhere"),
        ({"init_from": "nowhere"}, "init_from=nowhere does not exist"),
        ({"model__lora_rank": 8}, "of another shape"),
        ({"num_predictor_tokens": 2}, "has 1 predictor tokens"),
    ],
)
def test_what_cannot_be_started_from(base, data, tmp_path, earlier, overrides, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(config(base, data, tmp_path, **{"init_from": earlier, **overrides}))


def test_a_damaged_adapter_is_refused(base, data, tmp_path, earlier):
    path = shutil.copytree(earlier / "epoch_0", tmp_path / "copy")
    flip(path / checkpoint.ADAPTER)
    with pytest.raises(ValueError, match="adapter_model.pt is damaged"):
        train(config(base, data, tmp_path / "run", init_from=path))


def peft_copy(earlier, folder, weights=lambda w: w, **changes):
    """The adapter that ``earlier`` exported for PEFT, changed."""
    shutil.copytree(earlier / "epoch_0" / "adapter", folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    path = folder / "adapter_model.safetensors"
    save_file(weights(load_file(path)), path, metadata={"format": "pt"})
    return folder


def test_a_run_from_a_peft_adapter_is_that_from_the_checkpoint(
    base, data, tmp_path, earlier
):
    """Of the same weights: without views, since PEFT has no predictor tokens."""
    settings = {"loss__jepa_weight": 0, "replay__weight": 0, "save_every_n_steps": 3}
    found = []
    for name, place in (("ours", "epoch_0"), ("peft", "epoch_0/adapter")):
        cfg = config(base, data, tmp_path / name, init_from=earlier / place, **settings)
        found += train(cfg, 1, trained_weights)
    ours, peft = found
    assert ours.keys() == peft.keys() and len(ours) == 14
    assert all(torch.equal(ours[name], peft[name]) for name in ours)


# Scale of the earlier model: 8 / 4.
@pytest.mark.parametrize(
    ("changes", "alpha", "ratio"),
    [
        ({"lora_alpha": 2}, 8, 0.25),
        ({"lora_alpha": 16, "use_rslora": True}, 8, 4.0),
        (None, 16, 0.5),  # the run's own checkpoint
    ],
)
def test_another_scale_is_in_b(base, data, tmp_path, earlier, changes, alpha, ratio):
    start = (
        earlier if changes is None else peft_copy(earlier, tmp_path / "x", **changes)
    )
    settings = {"init_from": start, "model__lora_alpha": alpha}
    cfg = config(base, data, tmp_path / "run", **settings)
    found = at_start(cfg, 1, trained_weights)
    expected = checkpoint.load_torchtune_adapter(earlier / "epoch_0")[0]
    for name, weight in expected.items():
        assert torch.equal(found[name], weight * (ratio if "lora_b" in name else 1))


def test_another_scale_of_a_bfloat16_adapter_is_exact(base, data, tmp_path, earlier):
    def stored(weights):
        return {name: weight.bfloat16() for name, weight in weights.items()}

    folder = peft_copy(earlier, tmp_path / "x", stored, lora_alpha=24)
    cfg = config(base, data, tmp_path / "run", init_from=folder)
    found = at_start(cfg, 1, trained_weights)
    expected = checkpoint.load_torchtune_adapter(earlier / "epoch_0")[0]
    for name, weight in expected.items():
        ratio = 3 if "lora_b" in name else 1  # alpha is 8
        assert torch.equal(found[name], weight.bfloat16().float() * ratio)


@pytest.mark.parametrize("name", ["elsewhere/Llama-3.2-1B-Instruct", "another-base"])
def test_an_adapter_of_another_base_is_warned_of(
    base, data, tmp_path, earlier, warned, name
):
    folder = peft_copy(earlier, tmp_path / "x", base_model_name_or_path=name)
    cfg = config(base, data, tmp_path / "run", init_from=folder)
    said = at_start(cfg, 1, lambda _: warned)
    is_other = name == "another-base"
    assert any(f"was trained over {name}, and" in text for text in said) == is_other


@pytest.mark.parametrize("merged", [False, True])
def test_other_base_weights_are_warned_of(
    base, data, tmp_path, earlier, warned, merged
):
    """Such as the merged model of the run itself: its adapter would count twice."""
    own = shutil.copytree(base, tmp_path / "base")
    if merged:
        (merged_file,) = (earlier / "epoch_0").glob("model-*.safetensors")
        (own_file,) = own.glob("*.safetensors")
        shutil.copyfile(merged_file, own_file)
    cfg = config(own, data, tmp_path / "run", init_from=earlier)
    said = at_start(cfg, 1, lambda _: warned)
    load_model(cfg, torch.device("cpu"), earlier / "epoch_0")  # as to score it
    for texts in (said, warned):
        assert any("over other base weights" in text for text in texts) == merged


def without_mlp(weights):
    return {name: weight for name, weight in weights.items() if "mlp" not in name}


def with_bias(weights):
    return {**weights, "base_model.model.lm_head.bias": torch.zeros(1)}


@pytest.mark.parametrize(
    ("changes", "overrides", "message"),
    [
        ({"peft_type": "IA3"}, {}, "adapter_config.json: peft_type=IA3: adapters with"),
        ({"r": None}, {}, "adapter_config.json: r: .*got null"),
        ({"init_lora_weights": "pissa"}, {}, 'init_lora_weights: .*got "pissa"'),
        ({"alpha_pattern": {"q_proj": 4}}, {}, "alpha_pattern={'q_proj': 4}: adapters"),
        (
            {"weights": without_mlp},
            {},
            "of other layers than the model: it lacks w1, w2, w3; set model.lora_attn",
        ),
        ({"weights": with_bias}, {}, "it has base_model.model.lm_head.bias"),
        (
            {},
            {"model__apply_lora_to_mlp": False},
            "it also has down_proj, gate_proj, up_proj; set model.lora_attn_modules",
        ),
        (
            {},
            {"model__lora_rank": 8},
            "has rank 4, and the model 8; set model.lora_rank=4",
        ),
        (
            {},
            {"model__use_dora": True},
            "LoRA and the model DoRA; set model.use_dora=Fal",
        ),
    ],
)
def test_peft_adapters_that_do_not_fit(
    base, data, tmp_path, earlier, monkeypatch, changes, overrides, message
):
    """Said in one line, before the base model's weights are loaded."""
    folder = peft_copy(earlier, tmp_path / "peft", **changes)
    load = "torchtune.training.FullModelHFCheckpointer.load_checkpoint"
    monkeypatch.setattr(load, None)
    with pytest.raises(ValueError, match=message) as error:
        train(config(base, data, tmp_path / "run", init_from=folder, **overrides))
    assert "\n" not in str(error.value)
