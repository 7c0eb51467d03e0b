"""Validation measures the model on held-out pairs without changing the training."""

import os
import shutil

import pytest
import torch

from erjepa.checkpoints import checkpoint
from erjepa.datasets import hold_out, paired_dataset
from erjepa_recipe.lora_finetune_distributed_erjepa import (
    FinetuneRecipeERJEPA as Recipe,
)
from tests.harness.data import chat, write_jsonl
from tests.harness.ranks import kill_at_call, kill_at_rename, kill_when
from tests.harness.runs import (
    adapter_of,
    assert_same,
    at_start,
    evaluate,
    kill_at_step,
    predictions,
    read_metrics,
    read_untimed,
    small_config,
    state,
    train,
    train_and_kill,
)
from tests.reference.three_forwards import reference_loss

SIZE = 9


def config(base, data, output_dir, *more, **overrides):
    """35 pairs to train on: five steps of eight an epoch, on one rank."""
    settings = {
        "batch_size": 8,
        "replay__selection": "uniform",
        "replay__budget": 6,
        "validation__size": SIZE,
        "max_new_tokens": 6,
        "eval_batch_size": 2,
        "save_adapter_weights_only": True,
        **overrides,
    }
    return small_config(base, data, output_dir, *more, **settings)


def validations(output_dir):
    """Step -> what validation logged there."""
    steps = enumerate(read_metrics(output_dir), start=1)
    kept = (
        (step, {k: v for k, v in metrics.items() if k.startswith("val_")})
        for step, metrics in steps
    )
    return {step: metrics for step, metrics in kept if metrics}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """40 pairs: three of four have the same target, which a model soon always gives."""
    chats = [chat(f"say {i}", "ab" if i % 4 else f"c{i}") for i in range(40)]
    return write_jsonl(tmp_path_factory.mktemp("answers") / "train.jsonl", chats)


def reference_on_held_out(recipe):
    """The objective on the held-out pairs, each in forward passes of its own."""
    model = recipe._model.eval()
    with torch.no_grad():
        losses = reference_loss(
            model.decoder,
            [recipe._prepared.dataset[i] for i in recipe._pairs.held_out],
            views="shared",
            predictor_ids=recipe._prepared.collators.new.predictor_ids,
            predictor_rows=model.predictor,
            jepa_weight=recipe._passes._loss_fn.jepa_weight,
        )
    return dict(zip(("val_loss", "val_lm_loss", "val_jepa_loss"), losses, strict=True))


def test_losses_are_those_of_the_objective_without_dropout(base, data, tmp_path):
    overrides = {"model__lora_dropout": 0.3, "loss__jepa_weight": 0.5}
    cfg = config(base, data, tmp_path, eval_every_n_steps=2, **overrides)
    (expected,) = train(cfg, 1, reference_on_held_out)
    found = validations(tmp_path)
    # And at the end of each of the two epochs.
    assert list(found) == [2, 4, 5, 6, 8, 10]
    expected = {name: value.item() for name, value in expected.items()}
    assert found[10] == pytest.approx(expected, rel=1e-5)
    assert found[2] != pytest.approx(expected, rel=1e-2)


def test_sft_has_no_jepa_loss(base, data, tmp_path):
    overrides = {"replay__weight": 0, "loss__jepa_weight": 0}
    train(config(base, data, tmp_path, **overrides))
    for metrics in validations(tmp_path).values():
        assert metrics == {
            "val_loss": metrics["val_lm_loss"],
            "val_lm_loss": metrics["val_lm_loss"],
        }


def test_a_logger_that_skips_steps_keeps_validations(base, data, tmp_path):
    train(config(base, data, tmp_path, eval_every_n_steps=2, log_every_n_steps=3))
    lines = (tmp_path / "logs" / "metrics.txt").read_text().splitlines()
    steps = [int(line.split()[1]) for line in lines]
    assert steps == [2, 3, 4, 5, 6, 8, 9, 10]


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.slow
def test_training_does_not_notice(base, data, tmp_path, monkeypatch, reshard):
    """Dropout, replay and weights of two sharded ranks, bit for bit."""
    overrides = {
        "model__lora_dropout": 0.2,
        "gradient_accumulation_steps": 2,
        "batch_size": 2,
        "fsdp_reshard_after_forward": reshard,
        "stop__steps": 3,
    }
    with_it = {
        "eval_every_n_steps": 1,
        "validation__generate": 2,  # one batch: one of the ranks generates nothing
        "keep_best": True,
    }
    watched = config(base, data, tmp_path / "watched", **overrides, **with_it)
    (mine, _) = train(watched, 2, state)
    assert len(validations(tmp_path / "watched")) == 3
    monkeypatch.setattr(Recipe, "_validate", lambda self: {})
    (final, _) = train(config(base, data, tmp_path / "alone", **overrides), 2, state)
    assert not validations(tmp_path / "alone")
    assert_same(mine, final)
    alone = read_untimed(tmp_path / "alone")
    for a, b in zip(read_untimed(tmp_path / "watched"), alone, strict=True):
        # FLOPs and tokens too: validation is no training.
        assert {k: v for k, v in a.items() if not k.startswith("val_")} == b


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.slow
def test_patience_ends_a_run_that_learns_nothing(base, data, tmp_path, world_size):
    """The first validation is the best; the run ends after two like it, and stays so."""
    overrides = {"optimizer__lr": 0.0, "eval_every_n_steps": 1, "stop__patience": 2}
    overrides["batch_size"] = 8 // world_size
    train(config(base, data, tmp_path, **overrides), world_size)
    assert list(validations(tmp_path)) == [1, 2, 3]
    assert len(read_metrics(tmp_path)) == 3
    newest = checkpoint.checkpoints(tmp_path)[-1]
    assert checkpoint.load_progress(newest)["steps"] == 3
    overrides["resume_from_checkpoint"] = True
    train(config(base, data, tmp_path, **overrides), world_size)
    assert len(read_metrics(tmp_path)) == 3
    train(config(base, data, tmp_path, **overrides | {"stop__patience": 3}), world_size)
    assert list(validations(tmp_path)) == [1, 2, 3, 4]


@pytest.mark.slow
def test_any_ranks_measure_the_same(base, answers, tokenizer, tmp_path):
    """And what evaluation says of the checkpoint."""
    settings = {
        "validation__size": 11,
        "validation__generate": 11,
        "eval_batch_size": 4,
        "optimizer__lr": 3e-2,
        "epochs": 5,
        "keep_best": True,
    }
    found = {}
    for ranks in (1, 2):
        output_dir = tmp_path / str(ranks)
        settings["batch_size"] = 8 // ranks
        train(config(base, answers, output_dir, **settings), ranks)
        found[ranks] = validations(output_dir)
    accuracies = [metrics["val_accuracy"] for metrics in found[1].values()]
    assert accuracies[0] == 0 and 0.5 < max(accuracies) < 1
    for step, metrics in found[2].items():
        assert metrics == pytest.approx(found[1][step], rel=1e-3), step

    folder = tmp_path / "2"
    pairs = paired_dataset(tokenizer, source=str(answers))
    held_out = sorted(hold_out(pairs, 11).held_out)
    last = list(found[2].values())[-1]["val_accuracy"]
    for name, expected in (("best", max(accuracies)), ("epoch_4", last)):
        split = ("eval_split=validation", f"checkpoint_dir={folder / name}")
        cfg = config(base, answers, folder, *split, **settings)
        summary = evaluate(cfg, 2)
        assert summary.accuracy == expected and summary.split == "validation"
        ids = [p["id"] for p in predictions(folder, f"{name}_validation")]
        assert ids == held_out
        # Of the targets, those of three quarters are "ab".
        assert summary.targets_in_train == sum(i % 4 != 0 for i in ids)


def test_training_never_sees_a_held_out_pair(base, data, tmp_path):
    def seen(recipe):
        slots = recipe._memory.replay.memory.example_ids.tolist()
        trained = [pair.example_id for pair in recipe._pairs.train]
        validated = [batch.num_pairs for batch in recipe._validation.loss._batches]
        return slots, recipe._pairs.held_out, trained, validated

    by_seed = []
    for seed in (82, 23):
        output_dir = tmp_path / str(seed)
        ((slots, held_out, trained, mine), (*_, others)) = train(
            config(base, data, output_dir, seed=seed, batch_size=4, epochs=1), 2, seen
        )
        assert sorted([*trained, *held_out]) == list(range(44))
        assert sorted(slots) == trained
        # Each pair on one rank, in as many forward passes as the other runs.
        assert sum(mine) + sum(others) == SIZE and len(mine) == len(others) == 2
        by_seed.append(held_out)
    assert by_seed[0] == by_seed[1] and len(by_seed[0]) == SIZE


# What validation says after each of ten steps: the lowest is that of the fifth.
LOSSES = [9.0, 8.0, 7.0, 6.0, 5.0, 6.0, 7.0, 5.0, 5.5, 5.25]


@pytest.fixture(scope="module")
def scripted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Recipe,
            "_validate",
            lambda recipe: {"val_loss": LOSSES[recipe._progress.steps - 1]},
        )
        yield


def resumable(base, data, output_dir, **overrides):
    settings = {
        "model__lora_dropout": 0.1,
        "save_every_n_steps": 3,
        "keep_last_n": "null",
        "keep_best": True,
        "batch_size": 4,
    }
    return config(base, data, output_dir, **{**settings, **overrides})


@pytest.fixture(scope="module")
def uninterrupted(base, data, tmp_path_factory, scripted):
    output_dir = tmp_path_factory.mktemp("uninterrupted")
    (final, _) = train(resumable(base, data, output_dir), 2, state)
    return output_dir, final


def test_the_best_checkpoint_is_kept(uninterrupted):
    output_dir, _ = uninterrupted
    progress = checkpoint.load_progress(output_dir / "best")
    assert (progress["steps"], progress["val_loss"]) == (5, 5.0)
    best, epoch_0 = (adapter_of(output_dir / name) for name in ("best", "epoch_0"))
    assert_same(best, epoch_0)  # five steps
    names = {path.name for path in output_dir.glob("best*")}
    assert names == {"best", "best_step_5"}
    assert not (output_dir / "best" / checkpoint.RECIPE_STATE).exists()
    assert not (output_dir / checkpoint.SCRATCH).exists()
    found = [checkpoint.load_progress(p)["steps"] for p in output_dir.glob("*epoch_*")]
    assert sorted(found) == [3, 5, 6, 9, 10]


def test_without_the_key_no_best_is_kept(base, data, tmp_path, scripted):
    short = {"batch_size": 8, "epochs": 1}
    train(resumable(base, data, tmp_path, keep_best=False, **short))
    assert validations(tmp_path) and not list(tmp_path.glob("best*"))


def test_accuracy_comes_before_loss(base, data, tmp_path, monkeypatch):
    found = {2: (0.0, 2.0), 3: (0.5, 4.0), 4: (0.5, 5.0), 5: (0.25, 1.0), 6: (0.5, 3.0)}
    best_before = []

    def validate(recipe):
        if recipe._progress.steps > 1:
            progress = checkpoint.load_progress(tmp_path / "best")
            best_before.append(progress["steps"])
        accuracy, loss = found.get(recipe._progress.steps, (0.0, 3.0))
        return {"val_accuracy": accuracy, "val_loss": loss}

    monkeypatch.setattr(Recipe, "_validate", validate)
    cfg = config(base, data, tmp_path, keep_best=True)
    (best_before,) = train(cfg, 1, lambda recipe: best_before)
    assert best_before == [1, 2, 3, 3, 3, 6, 6, 6, 6]


def leads_to_the_fourth(link, target):
    """Whether ``best`` is about to lead to the best of the fourth step."""
    return target.name == checkpoint.BEST and link.readlink().name == "best_step_4"


# Where rank 0 is killed, and the newest checkpoint to go on from. The fourth best is kept at the
# fourth step; then the third one is deleted.
KILLS = {
    "before best leads to it": (kill_at_call(checkpoint, "set_best", 4), 3),
    "when best leads to it": (kill_when(os, "replace", leads_to_the_fourth), 3),
    "before the older one goes": (kill_at_rename(of="best_step_3"), 3),
    "while the older one goes": (kill_at_rename(of="best_step_3", after=True), 3),
    "after the best is kept": (kill_at_call(checkpoint, "set_best", 4, after=True), 3),
    "with the best of all kept": (kill_at_step(8), 6),
}


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.slow
def test_killed_and_resumed(base, data, tmp_path, uninterrupted, kill):
    output_dir, final = uninterrupted
    killer, steps = KILLS[kill]
    train_and_kill(resumable(base, data, tmp_path), 2, killer)
    assert adapter_of(tmp_path / "best")  # whole, whichever it is
    newest = checkpoint.checkpoints(tmp_path)[-1]
    assert checkpoint.load_progress(newest)["steps"] == steps
    (mine, _) = train(
        resumable(base, data, tmp_path, resume_from_checkpoint=True), 2, state
    )
    assert_same(mine, final)
    assert read_untimed(tmp_path) == read_untimed(output_dir)
    assert_same(adapter_of(tmp_path / "best"), adapter_of(output_dir / "best"))
    assert (tmp_path / "best").readlink() == (output_dir / "best").readlink()
    assert len(list(tmp_path.glob("best*"))) == 2


@pytest.mark.slow
def test_a_resumed_run_keeps_a_better_one(base, data, tmp_path, monkeypatch):
    """That a killed run saved after the checkpoint that is resumed."""

    def run(losses, **overrides):
        def validate(recipe):
            return {"val_loss": losses[recipe._progress.steps - 1]}

        monkeypatch.setattr(Recipe, "_validate", validate)
        cfg = resumable(base, data, tmp_path, **overrides)
        (better,) = train(cfg, 1, lambda recipe: recipe._progress.best)
        found = checkpoint.load_progress(tmp_path / "best")
        return better, (found["steps"], found["val_loss"])

    run([9.0, 8.0, 7.0, 6.0, 5.0], stop__steps=5)
    shutil.rmtree(tmp_path / "epoch_0_step_5")
    losses, again = [5.0, 5.0, 5.0, 5.5, 5.25, 4.5], {"resume_from_checkpoint": True}
    assert run(losses, stop__steps=5, **again) == ({"val_loss": [-5.25]}, (5, 5.0))
    assert run(losses, stop__steps=6, **again) == ({"val_loss": [-4.5]}, (6, 4.5))
    # A new run in the folder of one that was killed early has nothing to keep.
    for path in checkpoint.checkpoints(tmp_path):
        shutil.rmtree(path)
    assert run([7.0], stop__steps=1) == ({"val_loss": [-7.0]}, (1, 7.0))


def test_pairs_that_do_not_fit_are_not_validated_on(base, data, tokenizer, tmp_path):
    def lengths(recipe):
        return (
            recipe._pairs.held_out,
            [
                recipe._prepared.collators.new.length(recipe._prepared.dataset[i])
                for i in recipe._pairs.held_out
            ],
            len(recipe._pairs.train),
        )

    cfg = config(base, data, tmp_path, max_seq_len=90, skip_too_long=True)
    held_out, sizes, trained = at_start(cfg, 1, lengths)
    split = hold_out(paired_dataset(tokenizer, source=str(data)), SIZE)
    assert set(held_out) < set(split.held_out) and max(sizes) <= 90
    assert 0 < trained < len(split.train)


@pytest.mark.parametrize(
    "overrides, message",
    [
        ({"validation__size": 44}, "validation.size=44: it must be below"),
        ({"validation__generate": 2, "task": "spider"}, "task=spider needs db_id"),
    ],
)
def test_bad_values(base, data, tmp_path, overrides, message):
    with pytest.raises(ValueError, match=message):
        train(config(base, data, tmp_path, **overrides))
