"""A killed and resumed run equals the uninterrupted run, bit for bit on the CPU."""

import functools
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.prompt_format import PROMPT_FORMAT
from erjepa.training.run.saving import RunCheckpoints
from erjepa.utils.files import CONFIG
from erjepa_recipe.lora_finetune_distributed_erjepa import (
    FinetuneRecipeERJEPA as Recipe,
)
from tests.harness.cases import some_of
from tests.harness.ranks import kill_at_call, kill_at_rename
from tests.harness.runs import (
    assert_close_logs,
    assert_resumes,
    assert_same,
    at_start,
    flip,
    kill_at_step,
    make_config,
    read_metrics,
    read_untimed,
    small_config,
    state,
    train,
    train_and_kill,
)

# Where rank 0 is killed: at a step, or within the save that follows the sixth step.
KILLS = {
    "before step 1 after a save": kill_at_step(3),
    "within step 5": kill_at_call(Recipe, "_clipped_grad_norm", 5),
    "after step 8": kill_at_call(Recipe, "_train_step", 8, after=True),
    "in epoch 2": kill_at_step(11),
    "before weights are written": kill_at_call(RunCheckpoints, "_export", 3),
    "after weights are written": kill_at_call(RunCheckpoints, "_export", 3, after=True),
    "before recipe state is written": kill_at_call(torch, "save", 6),
    "before the rename": kill_at_rename(to="epoch_0"),
    "after the rename": kill_at_rename(to="epoch_0", after=True),
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
    return small_config(base, data, output_dir, **settings)


@pytest.fixture(scope="module")
def uninterrupted(base, data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("uninterrupted")
    (final, _) = train(config(base, data, output_dir), 2, state)
    return output_dir, final


QUICK = ["before the rename"]  # other tests kill within a step


@pytest.mark.parametrize("kill", some_of(KILLS, QUICK))
def test_killed_and_resumed(base, data, tmp_path, uninterrupted, kill):
    output_dir, final = uninterrupted
    train_and_kill(config(base, data, tmp_path), 2, KILLS[kill])
    before = checkpoint.checkpoints(tmp_path)
    assert before, "killed before the first checkpoint"
    for path in before:
        assert torch.load(path / checkpoint.ADAPTER, weights_only=True)

    resumed = config(base, data, tmp_path, resume_from_checkpoint=True)
    (mine, _) = train(resumed, 2, state)
    assert_same(mine, final)
    assert read_untimed(tmp_path) == read_untimed(output_dir)
    names = [path.name for path in checkpoint.checkpoints(output_dir)]
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == names
    for file in ("adapter_model.pt", "model-00001-of-00001.safetensors"):
        ours, theirs = (out / names[-1] / file for out in (tmp_path, output_dir))
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.slow
def test_killed_and_resumed_with_float32_adapters_over_bfloat16(base, data, tmp_path):
    mixed = functools.partial(config, base, data, dtype="bf16", epochs=1)
    end = assert_resumes(mixed, tmp_path, kill_at_step(5), 2)
    assert {weight.dtype for weight in end["weights"].values()} == {torch.float32}


def test_the_newest_three_are_kept_and_can_be_resumed(uninterrupted):
    found = checkpoint.checkpoints(uninterrupted[0])
    assert [path.name for path in found] == [
        "epoch_1_step_2",
        "epoch_1_step_4",
        "epoch_1",
    ]
    assert found == checkpoint.resumable_checkpoints(uninterrupted[0])
    assert not (uninterrupted[0] / checkpoint.SCRATCH).exists()


@pytest.mark.parametrize("world_size", some_of([1, 4], [1]))
def test_resumed_on_another_number_of_ranks(base, data, tmp_path, world_size):
    def settings(ranks, **more):
        cut = {"batch_size": 8 // ranks, "stop__steps": 8}
        return {"model__lora_dropout": 0.0, **cut, **more}

    whole, part = tmp_path / "whole", tmp_path / "part"
    (final, *_) = train(config(base, data, whole, **settings(2)), 2, state)
    train_and_kill(config(base, data, part, **settings(2)), 2, kill_at_step(5))
    resumed = settings(world_size, resume_from_checkpoint=True)
    (mine, *_) = train(config(base, data, part, **resumed), world_size, state)
    for name, weight in final["weights"].items():
        torch.testing.assert_close(mine["weights"][name], weight, rtol=1e-4, atol=1e-6)
    assert_close_logs(part, whole)
    assert torch.equal(mine["memory"]["example_ids"], final["memory"]["example_ids"])


@pytest.mark.slow
def test_a_rate_that_falls_to_where_the_run_stops(base, data, tmp_path):
    """It ends with the budget, also of a run that was killed on the way."""
    flops, warmup = 4.5e8, 2
    keys = {"stop__flops": flops, "lr_scheduler__until": "stop", "epochs": 1000}
    assert_resumes(
        functools.partial(config, base, data, **keys), tmp_path, kill_at_step(4)
    )
    metrics = read_metrics(tmp_path / "whole")
    assert len(metrics) > 4 and metrics[-1]["lr"] == 0
    for steps, after in enumerate(metrics[warmup:], start=warmup + 1):
        total = max(math.ceil(steps * flops / after["total_flops"]), steps)
        rate = 3e-3 * (1 - (steps - warmup) / (total - warmup))
        assert after["lr"] == pytest.approx(rate)


def test_a_resumed_run_keeps_its_seed_and_step_size(
    base, data, tmp_path, uninterrupted
):
    shutil.copytree(uninterrupted[0], tmp_path, dirs_exist_ok=True)
    other = {"seed": 83, "batch_size": 2, "resume_from_checkpoint": True}
    with pytest.raises(ValueError, match="was written with") as error:
        train(config(base, data, tmp_path, **other), 2)
    assert "seed: 82 there, 83 here" in str(error.value)
    assert "pairs of a step: 8 there, 4 here" in str(error.value)


def test_a_resumed_run_keeps_the_seed_that_it_drew(base, data, tmp_path):
    settings = {"seed": "null", "resume_from_checkpoint": "auto"}
    seeds = []
    for steps in (1, 2):
        torch.manual_seed(steps)  # of which a seed is drawn
        cfg = config(base, data, tmp_path, **settings, stop__steps=steps)
        seeds += train(cfg, 1, lambda recipe: recipe._cfg.seed)
    assert seeds[0] == seeds[1]


def test_a_budget_that_a_resumed_run_has_passed_is_warned_of(
    base, data, tmp_path, warned
):
    train(config(base, data, tmp_path, stop__steps=1))
    again = {"resume_from_checkpoint": True, "checkpoint_at_flops": "[1.0e3,1.0e15]"}
    cfg = config(base, data, tmp_path, **again, stop__steps=2)
    said = at_start(cfg, 1, lambda _: warned)
    (warning,) = (text for text in said if "checkpoint_at_flops" in text)
    assert (
        "epoch_0_step_1 is past 1000 FLOPs, so flops_0 will not be written" in warning
    )


CHANGES = {
    "optimizer.lr": "0.003 there, 0.001 here",
    "model.lora_alpha": "8 there, 16 here",
    "views": "shared there, standalone here",
    "dtype": "fp32 there, bf16 here",
    "replay.budget": "6 there, 5 here",
    "dataset": "44 pairs, .* there, 40 pairs, .* here",
}


def test_changed_settings_are_refused_at_once(base, data, tmp_path, uninterrupted):
    shutil.copytree(uninterrupted[0], tmp_path, dirs_exist_ok=True)
    other = {"optimizer__lr": 1e-3, "model__lora_alpha": 16, "views": "standalone"}
    other |= {"dtype": "bf16", "replay__budget": 5, "dataset__max_examples": 40}
    other |= {"resume_from_checkpoint": True, "epochs": 3, "log_every_n_steps": 2}
    with pytest.raises(ValueError, match="was written with other settings") as error:
        train(config(base, data, tmp_path, **other), 2)
    *lines, memory, way_on = str(error.value).splitlines()[1:]
    assert memory.endswith(f"continue_from={tmp_path / 'epoch_1'}")
    assert len(lines) == len(CHANGES)
    for key, change in CHANGES.items():
        assert any(re.fullmatch(f"  {key}: {change}", line) for line in lines), key
    assert way_on.endswith(
        f"'resume_changes=[{','.join(sorted(CHANGES.keys() - {'dataset'}))}]'"
    )


@pytest.mark.slow
def test_allowed_changes_are_in_force(base, data, tmp_path, uninterrupted):
    """The values of this run win over those that the optimizer's state has."""
    shutil.copytree(uninterrupted[0], tmp_path, dirs_exist_ok=True)
    other = {"optimizer__lr": 1e-3, "optimizer__weight_decay": 0.5, "epochs": 3}
    other |= {"resume_from_checkpoint": True, "resume_changes": "[optimizer]"}

    def groups(recipe):
        group = recipe._optimizer.param_groups[0]
        return {key: group[key] for key in ("lr", "initial_lr", "weight_decay")}

    (group, _) = train(config(base, data, tmp_path, **other), 2, groups)
    assert group == {"lr": 0.0, "initial_lr": 1e-3, "weight_decay": 0.5}
    # Two steps of warm-up, then a line to zero at step 18; the log has the rate after a step.
    for metrics, step in zip(read_metrics(tmp_path)[12:], range(13, 19), strict=True):
        assert metrics["lr"] == pytest.approx(1e-3 * (1 - (step - 2) / 16), abs=1e-12)
    # What was allowed is what the run has from here on.
    del other["resume_changes"]
    train(config(base, data, tmp_path, **other), 2)


def test_a_run_that_has_ended_keeps_its_config(base, data, tmp_path):
    """Otherwise the next run by that config would be refused, as it has other keys."""
    train(config(base, data, tmp_path, stop__steps=1))
    file, format_file = tmp_path / CONFIG, tmp_path / PROMPT_FORMAT
    before = file.read_bytes(), format_file.read_bytes()
    other = {"optimizer__lr": 1e-5, "resume_changes": "[optimizer.lr]"}
    other["resume_from_checkpoint"] = True
    train(config(base, data, tmp_path, stop__steps=1, **other))
    assert (file.read_bytes(), format_file.read_bytes()) == before
    again = ["resume_from_checkpoint=True", "stop.steps=2"]
    train(make_config(again, str(tmp_path)))
    assert len(read_metrics(tmp_path)) == 2


def test_the_implementation_of_the_optimizer_is_this_runs(base, data, tmp_path):
    train(config(base, data, tmp_path, optimizer__fused=True, stop__steps=1))
    again = {"resume_from_checkpoint": True, "optimizer__foreach": True}
    cfg = config(base, data, tmp_path, **again, optimizer__fused="null", stop__steps=2)
    group = at_start(cfg, 1, lambda recipe: dict(recipe._optimizer.param_groups[0]))
    assert (group["fused"], group["foreach"]) == (None, True)


@pytest.mark.parametrize("before", [0, 1])
def test_the_weights_that_are_trained_cannot_change(base, data, tmp_path, before):
    """Their states in the optimizer would be those of other weights."""
    key, after = "num_predictor_tokens", 1 - before
    train(config(base, data, tmp_path, **{key: before}, stop__steps=1))
    again = {"resume_from_checkpoint": True, "resume_changes": f"[{key}]"}
    with pytest.raises(ValueError, match=r"\(predictor\); undo .*num_predictor"):
        train(config(base, data, tmp_path, **again, **{key: after}))


def test_positions_past_the_end_of_an_epoch_are_refused(base, data, tmp_path):
    train(config(base, data, tmp_path, stop__steps=5, replay__weight=0))
    shorter = {"dataset__max_examples": 20, "replay__weight": 0}
    shorter |= {"resume_changes": "[dataset]"}
    cfg = config(base, data, tmp_path, resume_from_checkpoint=True, **shorter)
    with pytest.raises(ValueError, match="after 5 steps of an epoch, and .* has 5"):
        train(cfg)


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


DAMAGES = {
    "is damaged: its SHA-256": flip,
    "bytes, not the": cut,
    "is missing": Path.unlink,
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_of_any_file_is_found_and_the_way_on_works(
    tmp_path, uninterrupted, kind
):
    shutil.copytree(uninterrupted[0], tmp_path, dirs_exist_ok=True)
    newest = tmp_path / "epoch_1"
    files = [p for p in newest.rglob("*") if p.is_file() and p.name != "README.md"]
    assert len(files) > 8
    for file in files:
        content = file.read_bytes()
        DAMAGES[kind](file)
        with pytest.raises(ValueError, match=re.escape(str(file))) as error:
            checkpoint.latest(tmp_path)
        assert "epoch_1_step_4 is good" in str(error.value)
        assert kind in str(error.value) or file.name == "manifest.json"
        file.write_bytes(content)
    assert checkpoint.latest(tmp_path) == newest

    flip(newest / checkpoint.RECIPE_STATE)
    flip(tmp_path / "epoch_1_step_4" / checkpoint.ADAPTER)
    with pytest.raises(ValueError, match="epoch_1_step_2 is good") as error:
        checkpoint.latest(tmp_path)
    command = str(error.value).splitlines()[-1]
    subprocess.run(command, shell=True, check=True)
    assert checkpoint.latest(tmp_path).name == "epoch_1_step_2"
    flip(tmp_path / "epoch_1_step_2" / checkpoint.ADAPTER)
    with pytest.raises(ValueError, match="There is no older checkpoint"):
        checkpoint.latest(tmp_path)


def test_nothing_is_written_over(base, data, tmp_path, uninterrupted):
    shutil.copytree(uninterrupted[0], tmp_path, dirs_exist_ok=True)
    with pytest.raises(FileExistsError, match="holds epoch_1 of an earlier run"):
        train(config(base, data, tmp_path), 1)


def test_nothing_to_resume_from(base, data, tmp_path):
    cfg = config(base, data, tmp_path, resume_from_checkpoint=True)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        train(cfg, 1)
