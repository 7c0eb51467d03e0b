"""Which checkpoints of a run are kept, and what they contain."""

import shutil

import pytest

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.checkpoint import MEMORY, RECIPE_STATE
from erjepa.checkpoints.space import CheckpointSizes
from erjepa.checkpoints.stored_memory import memory_folder
from erjepa.configs import load


def save(folder, name, keep_last_n=None, keep_epochs=False):
    with checkpoint.new(folder, name) as new:
        (new / RECIPE_STATE).touch()
    checkpoint.prune(folder, keep_last_n, keep_epochs)
    return [path.name for path in checkpoint.checkpoints(folder)]


@pytest.mark.parametrize("keep_epochs", [False, True])
def test_the_newest_can_be_resumed_and_older_epochs_may_stay(tmp_path, keep_epochs):
    for name in ("epoch_0_step_1", "epoch_0", "epoch_1_step_1", "epoch_1", "epoch_2"):
        names = save(tmp_path, name, keep_last_n=2, keep_epochs=keep_epochs)
    assert names == [*["epoch_0"] * keep_epochs, "epoch_1", "epoch_2"]
    resumable = [path.name for path in checkpoint.resumable_checkpoints(tmp_path)]
    assert resumable == ["epoch_1", "epoch_2"]
    assert {path.name for path in tmp_path.iterdir()} == {*names}


def test_weights_that_a_run_kept_stay_when_it_is_resumed(tmp_path):
    for name in ("epoch_0", "epoch_1"):
        save(tmp_path, name, keep_last_n=1, keep_epochs=True)
    assert save(tmp_path, "epoch_2", keep_last_n=1) == ["epoch_0", "epoch_2"]
    assert not (tmp_path / "epoch_0" / RECIPE_STATE).exists()


def test_an_error_leaves_nothing_of_a_new_checkpoint(tmp_path):
    save(tmp_path, "epoch_0")
    with pytest.raises(ZeroDivisionError), checkpoint.new(tmp_path, "epoch_0") as new:
        (new / "model.safetensors").touch()
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["epoch_0"]
    assert checkpoint.latest(tmp_path) == tmp_path / "epoch_0"


def test_a_failed_rename_leaves_the_replaced_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, "epoch_0")
    rename = checkpoint.os.rename

    def fail_on_the_new_one(old, new):
        if old.name == "epoch_new":
            raise OSError("no space left")
        rename(old, new)

    monkeypatch.setattr(checkpoint.os, "rename", fail_on_the_new_one)
    with pytest.raises(OSError, match="no space left"):
        save(tmp_path, "epoch_0")
    assert [path.name for path in tmp_path.iterdir()] == ["epoch_0"]
    assert checkpoint.latest(tmp_path) == tmp_path / "epoch_0"


def test_a_newest_checkpoint_that_cannot_be_resumed_is_named(tmp_path):
    save(tmp_path, "epoch_0")
    with checkpoint.new(tmp_path, "epoch_1"):
        pass
    with pytest.raises(ValueError, match=f"epoch_1 holds no {RECIPE_STATE}. epoch_0 "):
        checkpoint.latest(tmp_path)


def test_the_newest_of_a_run_without_epochs_is_that_of_its_last_budget(tmp_path):
    for name in ("flops_0", "flops_10", "flops_9"):
        save(tmp_path, name)
        (tmp_path / name / MEMORY).mkdir()
    assert checkpoint.newest(tmp_path) == tmp_path / "flops_10"
    assert memory_folder(tmp_path) == tmp_path / "flops_10" / MEMORY
    save(tmp_path, "epoch_0")
    assert checkpoint.newest(tmp_path) == tmp_path / "epoch_0"


def test_the_space_of_a_run_is_that_of_what_it_keeps():
    def space(epochs, *overrides):
        cfg = load("tiny_synth", overrides)
        sizes = CheckpointSizes(weights=100, adapter=10, state=1, memory=1000)
        return sizes.run(cfg, epochs)

    assert space(25) == space(1)
    assert space(25, "keep_epochs=True") == space(25) + 24 * 1110
    assert space(25, "keep_last_n=1") == space(25)
    assert space(25, "keep_last_n=3") == space(25) + 1111
    assert space(1, "save_every_n_steps=null") == space(1) - 2 * 1111
    assert space(25, "keep_last_n=null") == space(25) + 22 * 1111
    budgets = "checkpoint_at_flops=[1,2]"
    assert space(1, budgets) == space(1) + 2 * 1010
    full = CheckpointSizes(weights=100, adapter=0, state=1, memory=1000)
    without, with_budgets = (
        full.run(load("tiny_synth", overrides), 1) for overrides in ([], [budgets])
    )
    assert with_budgets == without + 2 * 1100


def test_of_a_checkpoint_that_was_moved_and_linked_the_link_is_pruned(tmp_path):
    run = tmp_path / "run"
    save(run, "epoch_0")
    (run / "epoch_0").rename(tmp_path / "disk")
    (run / "epoch_0").symlink_to(tmp_path / "disk")
    save(run, "epoch_1")
    assert save(run, "epoch_2", keep_last_n=2) == ["epoch_1", "epoch_2"]
    assert (tmp_path / "disk" / RECIPE_STATE).exists()
    assert {path.name for path in run.iterdir()} == {"epoch_1", "epoch_2"}


def test_a_copy_of_the_best_checkpoint_gives_way_to_the_link(tmp_path):
    for step in (1, 2):
        best = tmp_path / checkpoint.best_name(step)
        best.mkdir()
        checkpoint.set_best(best)
        assert (tmp_path / "best").resolve() == best
        (tmp_path / "best").unlink()
        shutil.copytree(best, tmp_path / "best")  # as by cp -rL
