"""Predictions of an interrupted evaluation are kept and continued."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from erjepa.checkpoints.checkpoint import score_name
from erjepa.configs import load
from erjepa.evaluation.jobs import Job, weights_to_score
from erjepa.evaluation.predictions import PredictionStore, folder_of
from erjepa.tasks.score import write_scores
from erjepa.utils.summary import Reading, Summary, read_summary, scores_of_run

RIGHT = Reading(share=1.0, right=1, examples=1, interval=(0.2, 1.0))
SUMMARY = Summary(task="nl_rx", accuracy=1.0, primary="exact_match", exact_match=RIGHT)
SETTINGS = {"model": "m", "max_new_tokens": 5}


@pytest.fixture
def store(tmp_path):
    """An open store with one prediction."""
    store = PredictionStore(tmp_path, SETTINGS, 0)
    store.open()
    store.append([{"id": 1, "output": "x"}])
    return store


def test_parts_of_all_ranks_are_found_again(tmp_path):
    for rank in (0, 1):
        store = PredictionStore(tmp_path, SETTINGS, rank)
        store.open()
        store.append([{"id": rank, "output": "x"}, {"id": rank + 10, "output": "y"}])
    assert sorted(PredictionStore(tmp_path, SETTINGS, 0).open()) == [0, 1, 10, 11]


def test_a_torn_line_is_left_out_and_does_not_spoil_the_next(store, tmp_path):
    with (tmp_path / "part_0.jsonl").open("ab") as part:
        part.write('{"id": 2, "output": "ö'.encode()[:-1])
    store.append([{"id": 3, "output": "z"}])
    assert sorted(store.open()) == [1, 3]


def test_separators_of_lines_within_an_answer_do_not_cut_it(store, tmp_path):
    store.append([{"id": 2, "output": "a\u2028b\u0085c"}])
    assert store.open()[2] == {"id": 2, "output": "a\u2028b\u0085c"}


def test_finish_replaces_parts_and_can_be_read_again(store, tmp_path):
    scored = {"id": 1, "output": "x", "extracted": "x", "exact_match": True}
    store.finish([scored], SUMMARY)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("predictions.jsonl", "settings.json", "summary.json"),
    ]
    assert read_summary(tmp_path) == SUMMARY
    # Another task may score it, also if one before was killed between the two files.
    assert store.open() == {1: {"id": 1, "output": "x"}}
    scored = {"id": 1, "output": "x", "extracted": "x", "llm_jepa": True}
    (tmp_path / "predictions.jsonl").write_text(json.dumps(scored))
    assert store.open() == {1: {"id": 1, "output": "x"}}


def test_other_settings_start_anew(store, tmp_path, caplog):
    store.finish([{"id": 1, "output": "x"}], SUMMARY)
    store.open()
    assert not caplog.text
    other = PredictionStore(tmp_path, {**SETTINGS, "max_new_tokens": 6}, 0)
    assert other.open() == {}
    # The old accuracy does not pass for that of the new settings.
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]
    (said,) = caplog.messages
    assert said.endswith("settings have changed: max_new_tokens was 5, is 6.")


@pytest.mark.parametrize("weights", [{"weights": {"adapter_model.pt": "9 bytes"}}, {}])
def test_adapters_in_the_base_of_a_checkpoint_may_be_moved(tmp_path, weights):
    """Those in another base model make other answers."""
    old, new = ({**SETTINGS, **weights, "base_adapters": [f"{p}/a"]} for p in "xy")
    PredictionStore(tmp_path, old, 0).open()
    store = PredictionStore(tmp_path, new, 0)
    store.append([{"id": 1, "output": "x"}])
    assert bool(store.open()) == bool(weights)
    assert json.loads((tmp_path / "settings.json").read_text()) == new


def test_each_dataset_has_a_folder(tmp_path):
    folder = tmp_path / "epoch_0"
    one, two = ({"_component_": "my.own_dataset", "size": size} for size in (1, 2))
    assert folder_of(folder, one, "eval_dataset") == folder
    # Also before its settings are written, as another evaluation may start at the same time.
    assert folder_of(folder, two, "eval_dataset") != folder
    PredictionStore(folder, {"eval_dataset": one}, rank=0).open()
    assert folder_of(folder, one, "eval_dataset") == folder
    beside = folder_of(folder, two, "eval_dataset")
    assert beside == folder_of(folder, dict(two), "eval_dataset") != folder
    assert beside.parent == tmp_path and beside.name.startswith("epoch_0_on_own_")
    both = folder_of(folder, [one, two], "eval_dataset")
    assert both.name.startswith("epoch_0_on_own+own_2_")
    many = [{**one, "source": f"{i}_ü" * 20} for i in range(20)]
    assert len(folder_of(folder, many, "eval_dataset").name.encode()) < 255
    (folder / "settings.json").write_text("{")  # just being written
    assert folder_of(folder, two, "eval_dataset") == folder


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The folders a and b of two runs, each with epoch_0 and averaged weights."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name / "epoch_0" / "ema").mkdir(parents=True)
        (tmp_path / name / "torchtune_config.yaml").write_text("defaults: tiny_synth")
    return tmp_path


def weights(output_dir, checkpoint, *more):
    keys = [f"output_dir={output_dir}", f"checkpoint_dir={checkpoint}", *more]
    return weights_to_score(load("tiny_synth", keys))


def write_scores_of(checkpoint, folder):
    folder.mkdir(parents=True)
    write_scores(folder, [], SUMMARY.model_copy(update={"checkpoint": checkpoint}))


def test_a_run_has_no_scores_of_another(runs):
    """Its own may be in a folder below, as the scores of a grid's sequence are."""
    expected = (
        "output_dir=a belongs to the run in a, and b/epoch_0 is not its checkpoint; "
    )
    with pytest.raises(ValueError, match=f"{expected}set output_dir={runs}/b$"):
        weights("a", "b")
    with pytest.raises(ValueError, match="b/epoch_0/ema is not its checkpoint"):
        weights("a", "b", "checkpoint=ema")
    (runs / "exported").mkdir()
    with pytest.raises(ValueError, match="exported is not .* output_dir=a new folder$"):
        weights("a", "exported")
    (runs / "a" / "best").symlink_to("epoch_0")
    for own in ("a", "a/best", "a/epoch_0/ema", runs / "a"):
        assert weights("a", own) == weights("a/on_other", own) == weights("new", own)


@pytest.mark.parametrize("key", ["checkpoint_dir=a", "checkpoint=ema", "merged=True"])
def test_the_base_model_has_no_checkpoint(tmp_path, key):
    cfg = load("tiny_synth", [f"output_dir={tmp_path}", "base_only=True", key])
    with pytest.raises(ValueError, match=f"{key} cannot be combined with base_only"):
        weights_to_score(cfg)


def test_scores_of_another_checkpoint_of_the_same_name_stay(runs):
    write_scores_of("a/epoch_0", runs / "scores" / "evaluation" / "epoch_0_on_x")
    assert weights("scores", "a") and weights("scores", "b", "checkpoint=ema")
    expected = (
        "epoch_0_on_x holds the scores of a/epoch_0, which those of b/epoch_0 would"
    )
    with pytest.raises(ValueError, match=expected):
        weights("scores", "b")
    (runs / "a").rename(runs / "moved")
    assert weights("scores", "moved")


def base_scores(folder, output_dir, *more):
    """Start to score the base model in a folder."""
    keys = [f"checkpointer.checkpoint_dir={folder}", "base_only=True", *more]
    cfg = load("tiny_synth", [f"output_dir={output_dir}", *keys])
    assert weights_to_score(cfg) == [None]
    job = Job(None, SimpleNamespace(cfg=cfg, digest="0123"), None, None, None)
    PredictionStore(output_dir / "evaluation" / "base", job.settings(), 0).open()


def test_scores_of_another_base_model_stay(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    scores, copy = tmp_path / "scores", tmp_path / "copy"
    base_scores(tmp_path / "a", scores)
    with pytest.raises(ValueError, match="another base model, from .*/a; set another"):
        base_scores(tmp_path / "b", scores)
    with pytest.raises(ValueError, match="evaluation/base holds the scores of another"):
        base_scores(tmp_path / "a", scores, "base_adapters=[c]")
    shutil.copytree(tmp_path / "a", copy)
    base_scores(copy, scores)
    # Earlier versions did not identify the base model.
    (scores / "evaluation" / "base" / "settings.json").write_text('{"base files": {}}')
    base_scores(tmp_path / "b", scores)


def test_scores_of_another_run_are_not_taken_for_those_of_the_run(runs):
    """Written before it was trained; a run that was moved keeps its own."""
    for name in ("a", "b", "base"):
        path = "base" if name == "base" else f"{name}/epoch_0"
        write_scores_of(path, runs / "a" / "evaluation" / name)
    evaluation = runs / "a" / "evaluation"
    assert [*scores_of_run(runs / "a")] == [evaluation / "a", evaluation / "base"]
    (runs / "a").rename(runs / "moved")
    found = [folder.name for folder in scores_of_run(runs / "moved")]
    assert found == ["a", "base"]


def test_a_checkpoint_may_be_the_current_folder(runs, monkeypatch):
    (runs / "a" / "best").symlink_to("epoch_0")
    names = {"a/epoch_0": "epoch_0", "a/epoch_0/ema": "epoch_0_ema"}
    for path, name in names.items():
        monkeypatch.chdir(runs / path)
        (found,) = weights(runs / "a", ".")
        assert found == runs / path and score_name(found) == name
    for given, name in (("..", "epoch_0"), (runs / "a/epoch_0/ema", "epoch_0_ema")):
        (found,) = weights(runs / "a", given)
        assert score_name(found) == name
    assert score_name(Path("../ema")) == "epoch_0_ema"
    assert score_name(Path("epoch_1/ema/adapter")) == "epoch_1_ema_adapter"
    (linked,) = weights(runs / "a", runs / "a" / "best")
    assert score_name(linked) == "best"
