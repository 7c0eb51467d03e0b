"""A killed and resumed run is the uninterrupted run, bit for bit on the CPU."""

import functools
import os
import shutil

import pytest
import torch

from erjepa.training import checkpoint
from erjepa.training.saving import RunCheckpoints
from erjepa_recipe.finetune_erjepa import (
    FinetuneRecipeERJEPA as Recipe,
)
from tests.recipes.harness import (
    kill_at_call,
    make_config,
    overrides_for,
    read_metrics,
    train,
    train_and_kill,
)

TIMED = {"tokens_per_second_per_gpu", "pairs_per_second"}
COUNTED = {"step_flops", "total_flops", "total_tokens"}  # what ranks do not share

# Where rank 0 is killed: at a step, or within the save that follows the sixth step.
KILLS = {
    "before step 1 after a save": (Recipe, "_train_step", 3, False),
    "within step 5": (Recipe, "_clipped_grad_norm", 5, False),
    "after step 8": (Recipe, "_train_step", 8, True),
    "in epoch 2": (Recipe, "_train_step", 11, False),
    "before weights are written": (RunCheckpoints, "_write_weights", 3, False),
    "after weights are written": (RunCheckpoints, "_write_weights", 3, True),
    "before recipe state is written": (torch, "save", 6, False),
    "before the rename": (os, "rename", 3, False),
    "after the rename": (os, "rename", 3, True),
}


def config(base, data, output_dir, **overrides):
    settings = {
        "replay__selection": "uniform",
        "replay__budget": 6,
        "replay__capacity": 30,
        "batch_size": 4,
        "save_every_n_steps": 2,
        "keep_last_n": 3,
        "model__lora_dropout": 0.1,
        **overrides,
    }
    return make_config(overrides_for(base, data, output_dir, **settings))


def state(recipe):
    replay = recipe._replay.state_dict()
    weights = {
        name: getattr(p, "full_tensor", lambda p=p: p)().detach().clone()
        for name, p in recipe._model.named_parameters()
        if p.requires_grad
    }
    return {"weights": weights, "memory": replay["memory"]}


def deterministic(metrics):
    return [{k: v for k, v in m.items() if k not in TIMED} for m in metrics]


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    else:
        assert a == b


@pytest.fixture(scope="module")
def uninterrupted(base, data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("uninterrupted")
    (final, _) = train(config(base, data, output_dir), 2, state)
    return output_dir, final


@pytest.mark.parametrize("kill", KILLS)
def test_killed_and_resumed(base, data, tmp_path, uninterrupted, kill):
    output_dir, final = uninterrupted
    arm = functools.partial(kill_at_call, *KILLS[kill][:3], after=KILLS[kill][3])
    train_and_kill(config(base, data, tmp_path), 2, arm)
    before = checkpoint.checkpoints(tmp_path)
    assert before, "killed before the first checkpoint"
    for path in before:
        assert torch.load(path / checkpoint.ADAPTER, weights_only=True)

    resumed = config(base, data, tmp_path, resume_from_checkpoint=True)
    (mine, _) = train(resumed, 2, state)
    assert_same(mine, final)
    assert deterministic(read_metrics(tmp_path)) == deterministic(
        read_metrics(output_dir)
    )
    names = [path.name for path in checkpoint.checkpoints(output_dir)]
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == names
    for name in (names[-1],):
        for file in ("adapter_model.pt", "model-00001-of-00001.safetensors"):
            assert (tmp_path / name / file).read_bytes() == (
                output_dir / name / file
            ).read_bytes()


def test_killed_and_resumed_with_float32_adapters_over_bfloat16(base, data, tmp_path):
    whole, part = tmp_path / "whole", tmp_path / "part"
    mixed = {"dtype": "bf16", "epochs": 1}
    (final, _) = train(config(base, data, whole, **mixed), 2, state)
    arm = functools.partial(kill_at_call, Recipe, "_train_step", 5)
    train_and_kill(config(base, data, part, **mixed), 2, arm)
    resumed = config(base, data, part, resume_from_checkpoint=True, **mixed)
    (mine, _) = train(resumed, 2, state)
    assert {weight.dtype for weight in mine["weights"].values()} == {torch.float32}
    assert_same(mine, final)
    assert deterministic(read_metrics(part)) == deterministic(read_metrics(whole))


def test_only_the_newest_checkpoint_keeps_its_recipe_state(uninterrupted):
    found = checkpoint.checkpoints(uninterrupted[0])
    assert [path.name for path in found] == [
        *("epoch_0_step_2", "epoch_0_step_4", "epoch_0"),
        *("epoch_1_step_2", "epoch_1_step_4", "epoch_1"),
    ]
    assert [(p / checkpoint.RECIPE_STATE).exists() for p in found] == [False] * 5 + [
        True
    ]
    assert not (uninterrupted[0] / checkpoint.SCRATCH).exists()


@pytest.mark.parametrize("world_size", [1, 4])
def test_resumed_on_another_number_of_ranks(base, data, tmp_path, world_size):
    def settings(ranks, **more):
        return {"model__lora_dropout": 0.0, "batch_size": 8 // ranks, **more}

    whole, part = tmp_path / "whole", tmp_path / "part"
    (final, *_) = train(config(base, data, whole, **settings(2)), 2, state)
    arm = functools.partial(kill_at_call, Recipe, "_train_step", 9)
    train_and_kill(config(base, data, part, **settings(2)), 2, arm)
    resumed = settings(world_size, resume_from_checkpoint=True)
    (mine, *_) = train(config(base, data, part, **resumed), world_size, state)
    for name, weight in final["weights"].items():
        torch.testing.assert_close(mine["weights"][name], weight, rtol=1e-4, atol=1e-6)
    for a, b in zip(read_metrics(part), read_metrics(whole), strict=True):
        for name in set(b) - TIMED - COUNTED:
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name
    assert torch.equal(mine["memory"]["example_ids"], final["memory"]["example_ids"])


def test_a_resumed_run_keeps_its_seed_and_step_size(
    base, data, tmp_path, uninterrupted
):
    shutil.copytree(uninterrupted[0], tmp_path, dirs_exist_ok=True)
    for override in ({"seed": 83}, {"batch_size": 2}):
        cfg = config(base, data, tmp_path, resume_from_checkpoint=True, **override)
        with pytest.raises(ValueError, match="was written with"):
            train(cfg, 2)


def test_nothing_is_written_over(base, data, tmp_path, uninterrupted):
    shutil.copytree(uninterrupted[0], tmp_path, dirs_exist_ok=True)
    with pytest.raises(FileExistsError, match="holds epoch_1 of an earlier run"):
        train(config(base, data, tmp_path), 1)


def test_nothing_to_resume_from(base, data, tmp_path):
    cfg = config(base, data, tmp_path, resume_from_checkpoint=True)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        train(cfg, 1)
