"""Evaluation of a continued run also scores the datasets of the runs before it.

The counts of kept, gained and lost answers equal those from both runs' predictions, on any number
of ranks.
"""

import json
import logging
import shutil
from contextlib import nullcontext

import pytest
from omegaconf import OmegaConf

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.fingerprint import digests_of_files
from erjepa.evaluation.predictions import PredictionStore
from erjepa.utils.summary import read_summary
from erjepa_recipe import evaluate_erjepa
from tests.harness.data import write_jsonl
from tests.harness.ranks import on_ranks
from tests.harness.runs import make_config, paired, predictions, small_config, train

FIRST = {"say x": "ab", "say yy": "cd", "say zzz": "ef"}
SECOND = {"say x": "ab", "say yy": "ef"}
SFT = {"loss__jepa_weight": 0, "replay__weight": 0, "batch_size": 3, "epochs": 1}


def write_pairs(path, answers, copies=1):
    rows = [{"question": source, "answer": a} for source, a in answers.items()]
    write_jsonl(path, rows * copies)


def config(base, folder, name, *more, **overrides):
    """Trains on copies of the pairs that it is scored on, so that they are learned by heart."""
    settings = {**SFT, "optimizer__lr": 3e-2, "max_new_tokens": 6, **overrides}
    data = folder / f"{name}_train.jsonl"
    settings |= {"task": "null", **paired("eval_dataset", folder / f"{name}.jsonl")}
    return small_config(base, data, folder / name, *more, **settings)


def run(cfg, inspect, ranks=1):
    """What ``inspect`` finds in the recipe once it is set up, on rank 0, and its warnings."""
    said = []

    def log_rank_zero(log, text, level=logging.INFO):
        said.extend([text] * (level == logging.WARNING))

    def on_rank():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("torchtune.utils.log_rank_zero", log_rank_zero)
            recipe = evaluate_erjepa.EvaluationRecipeERJEPA(cfg)
            recipe.setup()
            return inspect(recipe), said

    return on_ranks(on_rank, ranks)[0]


def evaluate(cfg, ranks=1):
    """The summaries, and what is said to be forgotten; nothing is warned of."""

    def scored(recipe):
        summaries = recipe.evaluate()
        return summaries, recipe.forgotten(summaries)

    found, said = run(cfg, scored, ranks)
    assert not said
    return found


@pytest.fixture(scope="module")
def base(deep_base):
    return deep_base


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """Two runs, the second of which learns another answer to one pair, and nothing of another."""
    folder = tmp_path_factory.mktemp("trained")
    for name, answers in (("first", FIRST), ("second", SECOND)):
        write_pairs(folder / f"{name}.jsonl", answers)
        write_pairs(folder / f"{name}_train.jsonl", answers, copies=60)
    train(config(base, folder, "first"))
    start = folder / "first" / "epoch_0"
    train(config(base, folder, "second", continue_from=start))
    return folder


@pytest.fixture
def runs(trained, tmp_path):
    """A copy of them to write into."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    for saved in tmp_path.glob("*/torchtune_config.yaml"):
        saved.write_text(saved.read_text().replace(str(trained), str(tmp_path)))
    return tmp_path


def right(run, name):
    scored = predictions(run, name)
    return {p["prompt"]: p["output"] == p["target"] for p in scored}


def test_edited_pairs_are_answered_anew(base, runs):
    cfg = config(base, runs, "first")
    write_pairs(runs / "first.jsonl", {**FIRST, "say x": "wrong"})
    (before,), _ = evaluate(cfg)
    write_pairs(runs / "first.jsonl", FIRST)
    (after,), _ = evaluate(cfg)
    assert (before.accuracy, after.accuracy) == (pytest.approx(2 / 3), 1)


def test_pairs_that_were_held_out_are_not_in_training(base, runs):
    pairs = {f"say {i}": f"t{i}" for i in range(10)}
    write_pairs(runs / "first_train.jsonl", pairs)
    write_pairs(runs / "first.jsonl", pairs)
    # Of the base, as the run was trained on other pairs.
    keys = ["validation.size=4", "base_only=True"]
    (summary,), _ = evaluate(config(base, runs, "first", *keys))
    assert summary.targets_in_train == 6
    assert summary.unseen_pairs.examples == summary.unseen_targets.examples == 4


def test_what_became_of_the_answers(base, runs):
    (first,), lost = evaluate(config(base, runs, "first", max_forgetting=0))
    assert (first.accuracy, lost, first.before) == (1, "", None)
    assert first.targets_in_train == len(FIRST)

    cfg = config(base, runs, "second", max_forgetting=0.3)
    (new, old), lost = evaluate(cfg, 2)
    assert lost.startswith("max_forgetting=0.3: on paired_dataset(") and not new.before
    for summary in (new, old):  # the pairs of the first run are not known
        assert summary.targets_in_train is summary.unseen_pairs is None
    folders = sorted(path.name for path in (runs / "second" / "evaluation").iterdir())
    assert folders[0] == "epoch_0" and len(folders) == 2
    was, now = right(runs / "first", "epoch_0"), right(runs / "second", folders[1])
    assert now.keys() == was.keys() == FIRST.keys()
    found = old.before
    assert found.kept == sum(was[x] and now[x] for x in was) > 0
    assert found.lost == sum(was[x] and not now[x] for x in was) > 0
    assert found.gained == 0
    assert found.checkpoint == str(runs / "first" / "epoch_0")
    assert read_summary(runs / "second" / "evaluation" / folders[1]).before == found

    nothing_new = config(base, runs, "second", "eval_dataset=null", max_forgetting=0.99)
    ((again,), lost) = evaluate(nothing_new)
    assert (again.before, lost) == (found, "")
    # The earlier run held no pairs out.
    held_out = {"validation__size": 1, "eval_every_n_steps": 5, "keep_best": True}
    validated = config(base, runs, "second", **held_out)
    assert run(validated, lambda recipe: len(recipe._jobs)) == (2, [])
    alone = config(base, runs, "second", eval_earlier=False)
    assert run(alone, lambda recipe: len(recipe._jobs)) == (1, [])


def test_the_launcher_ends_with_what_was_forgotten(base, runs, monkeypatch):
    """In its table of failed ranks; a log line would be above its traceback."""
    evaluate(config(base, runs, "first"))
    cfg, file = config(base, runs, "second", max_forgetting=0.3), runs / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    # The harness has joined one.
    monkeypatch.setattr(evaluate_erjepa, "process_group", lambda *_: nullcontext())

    def exit_code():
        with pytest.raises(SystemExit) as end:
            evaluate_erjepa.recipe_main.__wrapped__(cfg)
        return end.value.code

    assert on_ranks(exit_code, 1) == [3]
    text = json.loads(file.read_text())["message"]["extraInfo"]["py_callstack"]
    assert text.startswith("max_forgetting=0.3: on ") and "answers were lost" in text


def test_best_may_become_another_checkpoint_between_two_datasets(
    base, runs, monkeypatch
):
    second = runs / "second"
    shutil.copytree(second / "epoch_0", second / "best_step_1")
    shutil.copytree(runs / "first" / "epoch_0", runs / "best_step_2")
    checkpoint.set_best(second / "best_step_1")
    finish = PredictionStore.finish

    def finish_and_move(self, *args):
        finish(self, *args)
        if (later := runs / "best_step_2").exists():
            checkpoint.set_best(later.rename(second / "best_step_2"))

    evaluate(config(base, runs, "first"))
    expected, _ = evaluate(config(base, runs, "second"))
    monkeypatch.setattr(PredictionStore, "finish", finish_and_move)
    cfg = config(base, runs, "second", checkpoint_dir=second / "best")
    found, _ = evaluate(cfg, 2)
    assert [s.accuracy for s in found] == [s.accuracy for s in expected]
    assert {s.checkpoint for s in found} == {str(second / "best")}
    kept = digests_of_files(second / "epoch_0")
    for settings in (second / "evaluation").glob("best*/settings.json"):
        assert json.loads(settings.read_text())["weights"] == kept


def test_weights_that_are_deleted_before_they_are_loaded_are_named(base, runs):
    def delete_and_evaluate(recipe):
        shutil.rmtree(runs / "first" / "epoch_0")
        return recipe.evaluate()

    with pytest.raises(FileNotFoundError, match="first/epoch_0 was deleted"):
        run(config(base, runs, "first"), delete_and_evaluate)


def test_what_cannot_be_compared_is_said(base, runs):
    """No dataset, not scored before, another file by now, no file, no run."""

    def said(**settings):
        cfg = config(base, runs, "second", **settings)
        return run(cfg, lambda recipe: len(recipe._jobs))

    start, saved = runs / "first" / "epoch_0", runs / "first" / "torchtune_config.yaml"
    score = f"tune run erjepa_eval --config {saved} checkpoint_dir={start}"
    own = saved.read_text()
    cfg = OmegaConf.create(own)
    cfg.eval_dataset = None
    OmegaConf.save(cfg, saved)
    jobs, (unscored,) = said()
    unmeasured = f"forgetting since {start} is not measured"
    assert jobs == 1 and unscored.startswith(unmeasured)
    on_file = "eval_dataset=erjepa.datasets.paired_dataset eval_dataset.source=FILE"
    assert unscored.endswith(f"{score} {on_file}")
    with pytest.raises(
        ValueError, match="max_forgetting=0.5: forgetting .* not measured"
    ):
        said(max_forgetting=0.5)
    saved.write_text(own)
    jobs, (unknown,) = said()
    accuracy = f"the accuracy of {start} on paired_dataset("
    assert jobs == 2 and unknown.startswith(accuracy)
    assert unknown.endswith(score)
    with pytest.raises(ValueError, match="max_forgetting=0.5: the accuracy"):
        said(max_forgetting=0.5)
    evaluate(make_config([f"checkpoint_dir={start}"], str(saved)))
    assert said(max_forgetting=0.5) == (2, [])
    write_pairs(runs / "first.jsonl", {"u": "ab"})
    assert said() == (2, [unknown])
    (runs / "first.jsonl").unlink()
    jobs, (missing,) = said()
    assert jobs == 1 and "first.jsonl), of an earlier run, is not scored: " in missing
    shutil.rmtree(runs / "first")
    gone = f"{unmeasured}: {start}: no such folder"
    assert said() == (1, [gone])
    with pytest.raises(ValueError, match=f"max_forgetting=0.5: {gone}"):
        said(max_forgetting=0.5)


def test_a_file_of_the_same_name_with_other_pairs_is_not_taken_for_the_earlier_one(
    base, runs
):
    same = f"eval_dataset.source={runs / 'first.jsonl'}"
    cfg = config(base, runs, "second", same, max_forgetting=0)
    with pytest.raises(ValueError, match="first.jsonl.* is not known"):
        run(cfg, lambda recipe: None)
    evaluate(config(base, runs, "first"))
    (summary,), _ = evaluate(cfg)
    assert summary.before is not None
    shorter = {"max_new_tokens": 5, "max_forgetting": "null"}
    _, (said,) = run(config(base, runs, "second", same, **shorter), lambda recipe: 0)
    start = runs / "first" / "epoch_0"
    assert f"max_new_tokens=5, and those of {start} up to 6, so" in said
    with pytest.raises(ValueError, match="forgetting=0.0: .*; set max_new_tokens=6"):
        run(config(base, runs, "second", same, **{**shorter, "max_forgetting": 0}), id)
    write_pairs(runs / "first.jsonl", {"say b": "cd"})
    expected = f"first.jsonl.* has other pairs than when {start} was scored on it"
    with pytest.raises(ValueError, match=expected):
        run(cfg, lambda recipe: None)


def test_answers_of_one_earlier_run_to_other_pairs_are_warned_of(base, runs):
    """The file was overwritten, and only the nearest of two earlier runs was scored again."""
    source, saved = runs / "monthly.jsonl", runs / "third" / "torchtune_config.yaml"
    same = f"eval_dataset.source={source}"
    shutil.copytree(runs / "second", saved.parent)
    cfg = OmegaConf.load(saved)
    cfg.init_from = cfg.continue_from = str(runs / "second")
    OmegaConf.save(cfg, saved)
    third = config(base, runs, "third", same, max_forgetting=0.99)
    for name, answers in (("first", FIRST), ("second", SECOND)):
        write_pairs(source, answers)
        evaluate(config(base, runs, name, same))
    (summary,), lost = evaluate(third)
    assert (summary.before.checkpoint, lost) == (str(runs / "second" / "epoch_0"), "")
    write_pairs(source, {"say b": "cd"})
    evaluate(config(base, runs, "second", same, eval_earlier=False))
    first = runs / "first" / "epoch_0"
    with pytest.raises(ValueError, match=f"has other pairs than when {first} was"):
        run(third, lambda recipe: None)
    evaluate(config(base, runs, "first", same))
    assert evaluate(third)[1] == ""
