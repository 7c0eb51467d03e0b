"""At each budget of FLOPs the adapter of that step is saved, once, on any number of ranks."""

import shutil
from dataclasses import replace

import pytest

from erjepa.checkpoints import checkpoint
from erjepa.training.run.saving import RunCheckpoints
from tests.harness.ranks import kill_at_call, kill_at_rename
from tests.harness.runs import (
    adapter_of,
    assert_same,
    kill_at_step,
    read_metrics,
    small_config,
    train,
    train_and_kill,
)


def config(base, data, output_dir, **overrides):
    settings = {"replay__budget": 6, "model__lora_dropout": 0.1, "batch_size": 8}
    settings |= overrides
    return small_config(base, data, output_dir, **settings)


@pytest.fixture(scope="module")
def by_step(base, data, tmp_path_factory):
    """A run of 12 steps with a checkpoint at every step."""
    output_dir = tmp_path_factory.mktemp("by_step")
    every = {"save_every_n_steps": 1, "keep_last_n": "null"}
    train(config(base, data, output_dir, **every))
    return output_dir


@pytest.fixture(scope="module")
def budgets(by_step):
    """Just past step 2; at step 5 exactly; two within step 7; one that is never reached."""
    total = [0, *(int(m["total_flops"]) for m in read_metrics(by_step))]
    assert total[6] + 2 <= total[7]
    return [total[2] + 1, total[5], total[6] + 1, total[6] + 2, total[12] + 1]


STEPS = {"flops_0": 3, "flops_1": 5, "flops_2": 7, "flops_3": 7}


def test_content(base, data, tmp_path, by_step, budgets):
    train(config(base, data, tmp_path, checkpoint_at_flops=budgets))
    assert [path.name for path in checkpoint.flops_checkpoints(tmp_path)] == list(STEPS)
    every_step = checkpoint.checkpoints(by_step)
    metrics = read_metrics(by_step)
    for (name, step), budget in zip(STEPS.items(), budgets, strict=False):
        path, same_step = tmp_path / name, every_step[step - 1]
        assert_same(adapter_of(path), adapter_of(same_step))
        assert not list(path.glob("model*")), "the adapter alone"
        assert not (path / checkpoint.RECIPE_STATE).exists()
        assert (path / "adapter" / "adapter_config.json").is_file()
        progress = checkpoint.load_progress(path)
        assert progress.pop("train_seconds") > 0
        assert progress["data"].pop("pairs").startswith("44 pairs, ")
        assert progress.pop("base_weights").startswith("11 weights, ")
        assert progress == {
            "data": {"held_out": 0, "validation_seed": 0},
            "budget": budget,
            "steps": step,
            "epoch": pytest.approx(step / 6),
            "total_flops": metrics[step - 1]["total_flops"],
            "total_tokens": metrics[step - 1]["total_tokens"],
            "lora_alpha": 8,
            "base_adapters": [],
        }
    # They leave resuming as it is.
    *older, newest = checkpoint.checkpoints(tmp_path)
    assert [path.name for path in (*older, newest)] == ["epoch_0", "epoch_1"]
    assert checkpoint.resumable_checkpoints(tmp_path) == [*older, newest]
    assert checkpoint.load_progress(newest)["epoch"] == 2


@pytest.mark.slow
def test_on_two_ranks(base, data, tmp_path, monkeypatch):
    """Without gathering the base."""
    monkeypatch.setattr("torchtune.training.gather_cpu_state_dict", None)
    every = {"save_every_n_steps": 1, "keep_last_n": "null"}
    cut = {"batch_size": 4, "stop__steps": 3, "save_adapter_weights_only": True}
    train(config(base, data, tmp_path / "every", **every, **cut), 2)
    first, second, _ = (int(m["total_flops"]) for m in read_metrics(tmp_path / "every"))
    cut["checkpoint_at_flops"] = [first + 1, second + 1]
    train(config(base, data, tmp_path, **cut), 2)
    _, *same_steps = checkpoint.checkpoints(tmp_path / "every")
    found = checkpoint.flops_checkpoints(tmp_path)
    for path, same_step in zip(found, same_steps, strict=True):
        assert_same(adapter_of(path), adapter_of(same_step))


def test_the_step_that_reaches_stop_flops_is_kept(base, data, tmp_path, budgets):
    cfg = config(
        base, data, tmp_path, checkpoint_at_flops=budgets[:2], stop__flops=budgets[1]
    )
    train(cfg)
    assert len(read_metrics(tmp_path)) == STEPS["flops_1"]
    assert [p.name for p in tmp_path.glob("*_1*")] == ["flops_1"]
    assert_same(
        adapter_of(tmp_path / "flops_1"), adapter_of(tmp_path / "epoch_0_step_5")
    )


# Rank 0 is killed within the write of a checkpoint. They are written in this order:
# epoch_0_step_2, flops_0, epoch_0_step_4, flops_1, epoch_0, flops_2, flops_3, ...
KILLS = {
    "between flops_2 and flops_3": kill_at_rename(to="flops_2", after=True),
    "within the adapter of flops_3": kill_at_call(
        RunCheckpoints, "_export", 7, after=True
    ),
    "at a later step": kill_at_step(10),
}


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.slow
def test_killed_and_resumed(base, data, tmp_path, by_step, budgets, kill):
    settings = {"checkpoint_at_flops": budgets, "save_every_n_steps": 2}
    train_and_kill(config(base, data, tmp_path, **settings), 1, KILLS[kill])
    train(config(base, data, tmp_path, resume_from_checkpoint=True, **settings))
    found = checkpoint.flops_checkpoints(tmp_path)
    assert [path.name for path in found] == list(STEPS)
    for path in found:
        same_step = checkpoint.checkpoints(by_step)[STEPS[path.name] - 1]
        assert_same(adapter_of(path), adapter_of(same_step))


def test_steps_that_are_taken_again_write_it_again(base, data, tmp_path, budgets):
    settings = {"checkpoint_at_flops": budgets[:1], "save_every_n_steps": 1}
    settings["stop__steps"] = STEPS["flops_0"]
    train(config(base, data, tmp_path, **settings))
    newest = checkpoint.latest(tmp_path)
    shutil.rmtree(newest)
    resume = {"resume_from_checkpoint": True, "resume_changes": "[optimizer.lr]"}
    train(config(base, data, tmp_path, **settings, **resume, optimizer__lr=1e-5))
    assert_same(adapter_of(tmp_path / "flops_0"), adapter_of(newest))


def test_a_resumed_run_keeps_its_budgets(base, data, tmp_path, budgets):
    cfg = {"checkpoint_at_flops": budgets[:2], "stop__steps": 6}
    train(config(base, data, tmp_path, **cfg))
    resumed = {"resume_from_checkpoint": True}
    other = {"checkpoint_at_flops": [budgets[0], budgets[1] + 1]}
    with pytest.raises(ValueError, match="flops_1 was not written at"):
        train(config(base, data, tmp_path, **resumed, **other))
    train(config(base, data, tmp_path, **resumed, checkpoint_at_flops=budgets))
    assert [path.name for path in checkpoint.flops_checkpoints(tmp_path)] == list(STEPS)


def test_a_budget_that_was_passed_is_not_written_late(base, data, tmp_path, budgets):
    train(config(base, data, tmp_path, stop__steps=6))
    cfg = {"resume_from_checkpoint": True, "checkpoint_at_flops": budgets}
    train(config(base, data, tmp_path, **cfg))
    found = checkpoint.flops_checkpoints(tmp_path)
    assert [path.name for path in found] == ["flops_2", "flops_3"]


def test_they_count_as_checkpoints_of_an_earlier_run(base, data, tmp_path, budgets):
    cfg = config(base, data, tmp_path, checkpoint_at_flops=budgets, stop__steps=3)
    train(cfg)
    for path in checkpoint.checkpoints(tmp_path):
        shutil.rmtree(path)
    said = (
        f"holds flops_0 of an earlier run. Choose .* killed: rm -r {tmp_path}/flops_0.$"
    )
    for resume in (False, "auto"):
        with pytest.raises(FileExistsError, match=said):
            train(replace(cfg, resume_from_checkpoint=resume))
