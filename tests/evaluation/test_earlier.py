"""Earlier runs are found by their configs, and their datasets by what they were scored on."""

import json
import shlex

import pytest
import yaml

from erjepa.checkpoints.fingerprint import digests_of_files
from erjepa.checkpoints.model_card import CONFIG
from erjepa.configs import load, with_overrides
from erjepa.evaluation.earlier import earlier_datasets, earlier_runs, starts_of
from tests.harness.model_cards import SUMMARY

CHANGE = {
    "examples": 1,
    "accuracy": 1.0,
    "kept": 1,
    "gained": 0,
    "lost": 0,
    "difference": 0.0,
    "interval": [-0.5, 0.5],
}
DATA = {"_component_": "erjepa.datasets.paired_dataset"}


def data(name):
    return {**DATA, "source": f"{name}.jsonl"}


@pytest.fixture
def write_run(tmp_path, monkeypatch):
    """Writes a run that started from others, and evaluations: folder name to dataset.

    Its checkpoints may record those that the others stood for, by ``started_from``.
    """
    monkeypatch.chdir(tmp_path)

    def write(name, *starts, scores=(), compared=(), started_from=None, **keys):
        weights, *memories = starts or (None,)
        of_name = {"output_dir": name, "eval_dataset": data(name)}
        keys = {**of_name, "init_from": weights, **keys}
        keys["replay"] = {"init_from": memories or None}
        for folder in ("epoch_0", "epoch_1/ema"):
            (tmp_path / name / folder).mkdir(parents=True)
        for folder in ("epoch_0", "epoch_1", "epoch_1/ema") if started_from else ():
            progress = json.dumps({"started_from": started_from})
            (tmp_path / name / folder / "progress.json").write_text(progress)
        (tmp_path / name / CONFIG).write_text(yaml.safe_dump(keys))
        for folder, dataset in dict(scores).items():
            weights = folder.removesuffix("_merged")
            path = tmp_path / name / "evaluation" / folder
            path.mkdir(parents=True)
            settings = {"eval_dataset": dataset, "max_new_tokens": 5}
            (path / "settings.json").write_text(json.dumps(settings))
            (path / "predictions.jsonl").touch()
            summary = {**SUMMARY}
            summary["checkpoint"] = f"{name}/{weights.partition('_also')[0]}"
            summary["weights"] = "adapter" if weights == folder else "merged"
            if folder in dict(compared):
                summary["before"] = {**CHANGE, "checkpoint": compared[folder]}
            (path / "summary.json").write_text(json.dumps(summary))

    return write


def found(path, *overrides, warn=None):
    cfg = load("tiny_synth", list(overrides))
    return {
        str(run.checkpoint): run
        for run in earlier_runs(path, starts_of(path, cfg), cfg, warn)
    }


def test_a_dataset_is_scored_as_by_the_run_whose_config_names_it(write_run, tmp_path):
    """b was scored on the dataset of a, too, which does not say how to score it."""
    write_run("a", task="gsm8k", validation={"size": 4}, scores={"epoch_1": data("a")})
    both = {"epoch_1": data("b"), "epoch_1_also_a": data("a")}
    write_run("b", "a", task="exact_match", validation={"size": 8}, scores=both)
    write_run("c", "b")
    runs = list(found(tmp_path / "c" / "epoch_1").values())
    how = {
        keys["eval_dataset"]["source"]: (keys["task"], keys["validation"]["size"])
        for keys in earlier_datasets(runs)
    }
    assert how == {"b.jsonl": ("exact_match", 8), "a.jsonl": ("gsm8k", 4)}


def test_a_dataset_is_scored_as_it_was(write_run, tmp_path):
    """Also once the run whose config names it is gone, or with keys from the command line."""
    how = {"task": "spider", "databases": "db", "validation": {"size": 4, "seed": 1}}
    scores = {"epoch_1": data("b"), "epoch_1_also_a": data("a")}
    write_run("b", task="exact_match", validation={"size": 8}, scores=scores)
    file = tmp_path / "b" / "evaluation" / "epoch_1_also_a" / "settings.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "scoring": how}))
    write_run("c", "b")
    runs = list(found(tmp_path / "c" / "epoch_1").values())
    of_b, of_a = earlier_datasets(runs)
    assert of_a == {**of_a, **how} and of_b["task"] == "exact_match"


def test_a_chain_and_branches(write_run, tmp_path):
    """Nearest first, each run once; memories of two branches; the last leads to itself."""
    write_run("a", "d")
    write_run("b", "a")
    write_run("c", "a/epoch_0")
    write_run("d", "b", "b", "c/epoch_1")
    runs = found(tmp_path / "d" / "epoch_1")
    assert list(runs) == ["b/epoch_1", "c/epoch_1", "a/epoch_1", "d/epoch_1"]
    averaged = found(tmp_path / "b" / "epoch_1" / "ema")
    assert next(iter(averaged)) == "a/epoch_1/ema"
    assert not found(tmp_path / "elsewhere")
    assert list(found(tmp_path / "elsewhere", "continue_from=c/epoch_0"))[:2] == [
        *("c/epoch_0", "a/epoch_0"),
    ]


def test_runs_that_were_trained_further_since(write_run, tmp_path):
    """The answers to compare with are those of the checkpoint that was the newest one then, even
    if its run has deleted it since.
    """
    write_run("a", scores={"epoch_0": data("x")})
    write_run("b", "a", "./a", started_from={"a": "epoch_0"})
    write_run("c", "b", output_dir="c", started_from={"b": "epoch_0"})
    assert list(found(tmp_path / "b" / "epoch_1")) == ["a/epoch_0"]
    (tmp_path / "a" / "epoch_0").rmdir()
    b, a = found(tmp_path / "c" / "epoch_1").values()
    assert (str(b.checkpoint), str(a.checkpoint)) == ("b/epoch_0", "a/epoch_0")
    assert a.scores_on(data("x"))[0] == tmp_path / "a" / "evaluation" / "epoch_0"


@pytest.mark.parametrize("decay", [0.9, None])
def test_averaged_weights_of_a_checkpoint_that_was_deleted(write_run, tmp_path, decay):
    """Averaged weights are compared with averaged ones, if the earlier run had any."""
    scores = {"epoch_0": data("x"), "epoch_0_ema": data("x")}
    write_run("a", scores=scores, ema_decay=decay)
    summary = tmp_path / "a" / "evaluation" / "epoch_0_ema" / "summary.json"
    summary.write_text(summary.read_text().replace("epoch_0_ema", "epoch_0/ema"))
    write_run("b", "a", started_from={"a": "epoch_0"})
    (tmp_path / "a" / "epoch_0").rmdir()
    (last,) = found(tmp_path / "b" / "epoch_1").values()
    assert last.scores_on(data("x"))[0].name == "epoch_0"
    (averaged,) = found(tmp_path / "b" / "epoch_1" / "ema").values()
    expected = "epoch_0" if decay is None else "epoch_0_ema"
    assert averaged.scores_on(data("x"))[0].name == expected


def test_datasets_and_scores(write_run, tmp_path):
    """A run that was scored has the datasets it was scored on; another one that of its config."""
    scores = {"epoch_0": data("old"), "epoch_1_also_x": data("x"), "epoch_1": data("y")}
    write_run("a", scores={**scores, "epoch_1_merged": data("x")}, max_new_tokens=9)
    write_run("b", "a", task="gsm8k")
    write_run("c", "b")
    b, a = found(tmp_path / "c" / "epoch_1").values()
    (unscored,) = b.datasets()
    expected = {"eval_dataset": data("b"), "task": "gsm8k", "primary": None}
    assert unscored == expected
    of_a = list(a.datasets())
    assert [keys["eval_dataset"]["source"][0] for keys in of_a] == [*"yx", "o", "x"]
    assert all(keys["max_new_tokens"] == 5 for keys in of_a)
    assert str(a.scores_on(data("x"))[0]) == "a/evaluation/epoch_1_also_x"
    assert a.scores_on(data("old")) is None  # of another checkpoint
    command = "tune run erjepa_eval --config a/torchtune_config.yaml "
    assert a.scoring_command(data("a")) == f"{command}checkpoint_dir=a/epoch_1"
    assert "'eval_dataset={" in a.scoring_command(data("old"))
    runs = found(tmp_path / "c" / "epoch_1", "merged=True")
    merged, _ = runs["a/epoch_1"].scores_on(data("x"))
    assert str(merged) == "a/evaluation/epoch_1_merged"
    # Not scored to the end, or with erjepa score.
    for name in ("summary.json", "settings.json"):
        (merged / name).rename(merged / "aside")
        runs = found(tmp_path / "c" / "epoch_1", "merged=True")
        assert runs["a/epoch_1"].scores_on(data("x")) is None
        (merged / "aside").rename(merged / name)


def test_the_command_that_scores_a_dataset_reads_it_as_it_is(write_run, tmp_path):
    write_run("a")
    write_run("b", "a")
    (a,) = found(tmp_path / "b" / "epoch_1").values()
    section = {**data("x"), "new_system_prompt": "Be kind: \N{GRINNING FACE} # 'é'\n"}
    *_, override = shlex.split(a.scoring_command(section))
    assert with_overrides({}, [override]) == {"eval_dataset": section}


def test_a_checkpoint_may_have_any_name(write_run, tmp_path):
    """Also one that looks like that of another's scores on another dataset."""
    scores = {"kept_on_disk": data("x"), "kept_on_disk_also_y": data("y")}
    others = {"kept": data("z"), "kept_on_disk_on_tape": data("u")}
    write_run("a", scores={**others, **scores})
    (tmp_path / "a" / "epoch_0").rename(tmp_path / "a" / "kept_on_disk")
    write_run("b", "a/kept_on_disk")
    (a,) = found(tmp_path / "b" / "epoch_1").values()
    for name, dataset in scores.items():
        assert a.scores_on(dataset)[0] == tmp_path / "a" / "evaluation" / name
    assert a.scores_on(data("z")) is a.scores_on(data("u")) is None


def test_scores_of_best_are_those_of_the_checkpoint_it_stood_for(write_run, tmp_path):
    """Whose weights they have: since then the link may have led to another."""
    write_run("a", scores={"best": data("x"), "best_ema": data("y")})
    write_run("b", "a/best", started_from={"a/best": "../best_step_1"})
    first, best = tmp_path / "a" / "best_step_1", tmp_path / "a" / "best"
    (first / "ema").mkdir(parents=True)
    for weights, name in ((first, "best"), (first / "ema", "best_ema")):
        (weights / "adapter_model.pt").write_bytes(name.encode())
        path = tmp_path / "a" / "evaluation" / name / "settings.json"
        settings = json.loads(path.read_text())
        settings["weights"] = digests_of_files(weights)
        path.write_text(json.dumps(settings))
    best.symlink_to(first.name)
    summary = path.with_name("summary.json")
    summary.write_text(summary.read_text().replace("a/best_ema", "a/best/ema"))
    (last,) = found(tmp_path / "b" / "epoch_1").values()
    (averaged,) = found(tmp_path / "b" / "epoch_1" / "ema").values()
    assert last.scores_on(data("x")) and averaged.scores_on(data("y"))
    assert last.scores_on(data("y")) is averaged.scores_on(data("x")) is None
    (first / "adapter_model.pt").write_bytes(b"another")
    (last,) = found(tmp_path / "b" / "epoch_1").values()
    assert last.scores_on(data("x")) is None


def test_scores_of_another_run_are_no_baseline(write_run, tmp_path):
    write_run("a", scores={"epoch_1": data("x")})
    write_run("b", "a")
    write_run("c")
    path = tmp_path / "a" / "evaluation" / "epoch_1" / "summary.json"
    for scored, expected in (("a", data("x")), ("c", data("a")), ("gone", data("x"))):
        summary = {**SUMMARY, "checkpoint": f"{scored}/epoch_1"}
        path.write_text(json.dumps(summary))
        (a,) = found(tmp_path / "b" / "epoch_1").values()
        assert [keys["eval_dataset"] for keys in a.datasets()] == [expected]


def test_adapters_in_the_base(write_run, tmp_path):
    """The newest first, before memories."""
    for name in "abc":
        write_run(name)
    write_run("d", None, "c", base_adapters=["a", "b/epoch_0"])
    runs = found(tmp_path / "d" / "epoch_1")
    assert list(runs) == ["b/epoch_0", "a/epoch_1", "c/epoch_1"]


def test_pairs_that_an_earlier_run_held_out(write_run, tmp_path):
    """As many as there, and not those of its tests."""
    how = {"validation": {"size": 2, "seed": 3}, "databases": "d"}
    write_run("a", scores={"epoch_1": data("x")}, dataset=data("train"), **how)
    write_run("b", "a")
    keys = ["eval_split=validation", "validation.size=7", "merged=True"]
    (a,) = found(tmp_path / "b" / "epoch_1", *keys).values()
    assert list(a.datasets()) == [{"primary": None, **how, "dataset": data("train")}]
    command = a.scoring_command(data("train"))
    assert command.endswith("a/epoch_1 eval_split=validation merged=True")


def test_what_is_no_run_is_passed_over(write_run, tmp_path):
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_config.json").touch()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.json").touch()
    write_run("a", "peft", "memory")
    assert not found(tmp_path / "a" / "epoch_1")


def test_a_damaged_file_is_named(write_run, tmp_path):
    write_run("a", scores={"epoch_1": data("x")})
    write_run("b", "a")
    settings = tmp_path / "a" / "evaluation" / "epoch_1" / "settings.json"
    settings.write_text('{"max_new_tokens": "9"}')
    with pytest.raises(ValueError, match="settings.json: max_new_tokens: .* integer"):
        found(tmp_path / "b" / "epoch_1")


def test_relative_paths_are_those_of_training(write_run, tmp_path, monkeypatch):
    """Where output_dir is relative too; else the warning has the whole path."""
    write_run("a", output_dir="a")
    write_run("b", "a", output_dir="b")
    write_run("c", "a", "a", output_dir="/elsewhere/c")  # as continue_from: one warning
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert list(found(tmp_path / "b" / "epoch_1")) == [str(tmp_path / "a" / "epoch_1")]
    said = []
    assert not found(tmp_path / "c" / "epoch_1", warn=said.append)
    (missing,) = said
    assert missing.startswith(f"forgetting since {tmp_path}/other/a is not measured")


@pytest.mark.parametrize("disk", ["", "{old}/"])
def test_runs_that_were_moved_together(write_run, tmp_path, monkeypatch, disk):
    """To where relative paths and whole ones do not lead; a was trained further before that."""
    old, new = tmp_path / "old", tmp_path / "new"
    disk = disk.format(old=old)
    write_run("a", output_dir=f"{disk}a", scores={"epoch_0": data("a")})
    merged = [str(old / "a" / "epoch_0")]
    keys = {"base_adapters": merged, "started_from": {f"{disk}a": "epoch_0"}}
    write_run("b", f"{disk}a", output_dir=f"{disk}b", **keys)
    write_run("c", None, f"{disk}b", output_dir=f"{disk}c", base_adapters=merged)
    new.mkdir()
    for run in "abc":
        (tmp_path / run).rename(new / run)
    assert list(found(new / "b" / "epoch_1")) == [str(new / "a" / "epoch_0")]
    runs = found(new / "c" / "epoch_1")
    assert list(runs) == [str(new / "a" / "epoch_0"), str(new / "b" / "epoch_1")]
    (new / "a" / "epoch_0").rmdir()  # by its run
    assert list(found(new / "c" / "epoch_1")) == list(runs)


def test_a_missing_run_of_several_branches_is_warned_about_once(write_run, tmp_path):
    for branch, gone in (("b", "gone"), ("c", tmp_path / "gone"), ("d", "./b/../gone")):
        write_run(branch, str(gone), output_dir=f"/elsewhere/{branch}")
    write_run("e", "b", "c", "d")
    said = []
    found(tmp_path / "e" / "epoch_1", warn=said.append)
    assert len(said) == 1 and "gone" in said[0]


@pytest.mark.parametrize(
    ("scored", "is_known"),
    [("ab", True), ("b", False), ("bcd", False), ("bx", False), ("", False)],
)
def test_a_deleted_run_is_known_from_the_scores_of_a_later_one(
    write_run, tmp_path, scored, is_known
):
    """That were compared with it; scores on any other dataset say nothing of it."""
    scores = {f"epoch_1_also_{name}": data(name) for name in scored}
    compared = {"epoch_1_also_a": "a/epoch_0"}
    write_run("b", "a", scores=scores, compared=compared)
    write_run("c", "b", "a")  # two runs started from a
    write_run("d", "c", "other")  # and no scored one from this
    said = []
    own = f"eval_dataset={json.dumps(data('d'))}"
    runs = found(tmp_path / "d" / "epoch_1", own, warn=said.append).values()
    missing = [f"{tmp_path}/other", f"{tmp_path}/a"][: 2 - is_known]
    assert [text.split()[2] for text in said] == missing
    datasets = [keys["eval_dataset"] for keys in earlier_datasets(list(runs))]
    assert (data("a") in datasets) == is_known
