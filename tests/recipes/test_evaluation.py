"""The evaluation recipe scores the checkpoints of a training run."""

import functools
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from tqdm import tqdm

from erjepa.checkpoints.checkpoint import load_predictor
from erjepa.checkpoints.manifest import MANIFEST
from erjepa.configs import load
from erjepa.datasets import predictor_token_ids
from erjepa.evaluation import jobs
from erjepa.evaluation.jobs import weights_to_score
from erjepa.training.model import device
from erjepa_recipe import evaluate_erjepa
from tests.harness.cases import some_of
from tests.harness.data import chat, write_jsonl
from tests.harness.ranks import on_ranks
from tests.harness.runs import (
    evaluate,
    flip,
    paired,
    predictions,
    small_config,
    tiny,
    train,
)
from tests.reference.three_forwards import hidden_states


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("trained")
    train(tiny(output_dir), 1)
    return output_dir


def test_adapter_and_merged_weights_and_any_ranks_score_alike(trained, tmp_path):
    from_adapter = evaluate(tiny(trained))
    expected = predictions(trained, "epoch_0")
    right = sum(p["output"] == p["target"] for p in expected)
    assert from_adapter.accuracy == right / 40 and len(expected) == 40
    assert from_adapter.targets_in_train == 0
    assert from_adapter.unseen_pairs == from_adapter.readings["exact_match"]
    assert from_adapter.unseen_targets == from_adapter.unseen_pairs
    assert len({p["output"] for p in expected}) > 1

    merged = tmp_path / "merged"
    shutil.copytree(trained / "epoch_0", merged)
    for file in merged.glob("adapter_model*"):
        file.unlink()
    for overrides, ranks in (
        ([f"checkpoint_dir={merged}"], 1),
        ([f"checkpoint_dir={merged}"], 2),
        ([f"checkpoint_dir={trained / 'epoch_0'}"], 2),
    ):
        summary = evaluate(tiny(tmp_path, *overrides), ranks)
        assert predictions(tmp_path, Path(summary.checkpoint).name) == expected

    peft = trained / "epoch_0" / "adapter"
    summary = evaluate(tiny(tmp_path, f"checkpoint_dir={peft}"))
    assert summary.weights == "adapter"
    assert predictions(tmp_path, "epoch_0_adapter") == expected

    as_exported = tiny(tmp_path / "again", f"checkpoint_dir={merged}", "merged=True")
    assert evaluate(as_exported).weights == "merged"
    assert predictions(tmp_path / "again", "merged_merged") == expected


@pytest.mark.slow
def test_merged_weights_are_those_that_are_exported(trained, tmp_path):
    """The adapter lies beside other weights, of which only merged=True can know."""
    both = tmp_path / "both"
    shutil.copytree(trained / "epoch_0", both)
    (both / MANIFEST).unlink()  # of other weights
    base = Path(tiny(tmp_path).checkpointer.get("checkpoint_dir"))
    (file,) = both.glob("model*.safetensors")
    shutil.copy(base / "model.safetensors", file)
    scored = {}
    for merged in (False, True):
        path = f"checkpoint_dir={both}"
        summary = evaluate(tiny(tmp_path, path, f"merged={merged}"))
        scored[summary.weights] = predictions(
            tmp_path, "both_merged" if merged else "both"
        )
    evaluate(tiny(tmp_path, "base_only=True"))
    assert scored["merged"] == predictions(tmp_path, "base") != scored["adapter"]

    file.unlink()
    with pytest.raises(FileNotFoundError, match="holds no merged weights"):
        evaluate(tiny(tmp_path, f"checkpoint_dir={both}", "merged=True"))


@pytest.mark.slow
def test_a_list_of_checkpoints_scores_each_as_if_alone(trained, tmp_path):
    """Merged weights, then an adapter; killed in the second, which starts from the base."""
    merged, half = tmp_path / "merged", tmp_path / "half"
    shutil.copytree(
        trained / "epoch_0", merged, ignore=shutil.ignore_patterns("adapter*")
    )
    half.mkdir()
    state = torch.load(trained / "epoch_0" / "adapter_model.pt", weights_only=True)
    torch.save({k: v / 2 for k, v in state.items()}, half / "adapter_model.pt")
    expected = {}
    for path in (merged, half):
        evaluate(tiny(tmp_path / "alone", f"checkpoint_dir={path}"))
        expected[path.name] = predictions(tmp_path / "alone", path.name)
    assert expected["merged"] != expected["half"]

    together = tiny(tmp_path / "listed", f"checkpoint_dir=[{merged},{half}]")
    evaluate(together, dies_at_batch=5)  # of three batches each
    evaluate(together)
    for path in (merged, half):
        assert predictions(tmp_path / "listed", path.name) == expected[path.name]

    same_name = f"checkpoint_dir=[{trained / 'epoch_0'},{tmp_path / 'epoch_0'}]"
    (tmp_path / "epoch_0").mkdir()
    with pytest.raises(ValueError, match="the names must differ"):
        evaluate(tiny(tmp_path, same_name))


def expected_cosines(cfg, adapter, predictor):
    """Each pair's cosine by two forward passes of its own."""
    tokenizer = cfg.tokenizer.build()
    model = cfg.model.build()
    base = cfg.checkpointer.build(output_dir=cfg.output_dir)
    weights = base.load_checkpoint()["model"]
    model.load_state_dict({**weights, **adapter})
    ids = predictor_token_ids(tokenizer, cfg.num_predictor_tokens, 672)
    rows = weights["tok_embeddings.weight"][ids] if predictor is None else predictor
    rows = dict(zip(ids, rows, strict=True))
    cosines = []
    for pair in cfg.eval_dataset.build(tokenizer):
        p = hidden_states(model, [*pair.source, *ids], rows)[-1]
        z = hidden_states(model, list(pair.target_view), {})[-1]
        cosines.append(torch.cosine_similarity(p, z, dim=0).item())
    return cosines


@pytest.mark.parametrize("trained_rows", some_of([True, False], [True]))
def test_alignment(trained, tmp_path, trained_rows):
    """With the predictor tokens of the checkpoint, or with those of the vocabulary."""
    path = tmp_path / "epoch_0"
    shutil.copytree(trained / "epoch_0", path)
    predictor = load_predictor(path)
    if not trained_rows:
        for name in ("predictor.pt", "manifest.json"):
            (path / name).unlink()
        predictor = None
    cfg = tiny(tmp_path, f"checkpoint_dir={path}", "alignment=True", "target_loss=True")
    summary = evaluate(cfg, 2)
    adapter = torch.load(path / "adapter_model.pt", weights_only=True)
    expected = expected_cosines(cfg, adapter, predictor)
    scored = predictions(tmp_path, "epoch_0")
    assert [p["cosine"] for p in scored] == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 1e-3
    evaluate(tiny(trained))
    without = predictions(trained, "epoch_0")
    added = {"cosine", "cosine_of_input", "target_loss", "target_tokens"}
    assert [{k: p[k] for k in p.keys() - added} for p in scored] == without
    assert added <= scored[0].keys()
    total = sum(p["target_loss"] * p["target_tokens"] for p in scored)
    mean = total / sum(p["target_tokens"] for p in scored)
    assert summary.target_loss == pytest.approx(mean)


def test_rank_0_digests_the_weights_for_all(trained, tmp_path, monkeypatch):
    digests_of_files = jobs.digests_of_files

    def digests(folder):
        assert os.environ["RANK"] == "0"
        return digests_of_files(folder)

    monkeypatch.setattr(jobs, "digests_of_files", digests)
    evaluate(tiny(tmp_path, f"checkpoint_dir={trained / 'epoch_0'}"), 2)


def test_alignment_needs_whole_blocks_on_cuda(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "flex_obstacle", lambda device: None)
    cfg = tiny(tmp_path, f"checkpoint_dir={trained / 'epoch_0'}", "alignment=True")

    def run():
        recipe = evaluate_erjepa.EvaluationRecipeERJEPA(cfg)
        with pytest.raises(ValueError, match="row_length=None: FlexAttention"):
            recipe.setup()
        return True

    assert on_ranks(run, 1) == [True]


@pytest.mark.parametrize(
    ("words", "keys", "message"),
    [
        (900, [], "prompt has .* tokens, but the model has 512 positions"),
        (
            130,
            ["target_loss=True"],
            "pair takes .* with its target .* a row has 128; raise",
        ),
        (
            130,
            ["alignment=True"],
            "pair takes .* with its target .* a row has 128; raise",
        ),
        (20, ["target_loss=True"], None),
    ],
)
def test_pairs_that_do_not_fit_are_named_before_any_is_answered(
    trained, tmp_path, words, keys, message
):
    rows = [{"input": "word " * n, "output": "x"} for n in (1, words, 1)]
    data = tmp_path / "pairs.jsonl"
    write_jsonl(data, rows)
    cfg = tiny(
        tmp_path,
        f"checkpoint_dir={trained / 'epoch_0'}",
        "eval_dataset=erjepa.datasets.paired_dataset",
        f"eval_dataset.source={data}",
        *("max_seq_len=128", "row_length=128", *keys),
    )
    if message is None:
        assert evaluate(cfg).readings["exact_match"].examples == 3
        return
    with pytest.raises(ValueError, match=f"pairs.jsonl:2: the {message}"):
        evaluate(cfg)


@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("adapter_model.pt", []),
        ("model-00001-of-00001.safetensors", ["merged=True"]),
        ("predictor.pt", ["alignment=True"]),
    ],
)
def test_damaged_weights_are_not_scored(trained, tmp_path, file, more):
    path = shutil.copytree(trained / "epoch_0", tmp_path / "epoch_0")
    flip(path / file)
    with pytest.raises(ValueError, match=f"{file} is damaged: its SHA-256"):
        evaluate(tiny(tmp_path, f"checkpoint_dir={path}", *more))


def test_base_only_ignores_the_adapter(trained):
    evaluate(tiny(trained))
    summary = evaluate(tiny(trained, "base_only=True"))
    assert summary.checkpoint == "base" and summary.accuracy == 0
    base, tuned = (
        [p["output"] for p in predictions(trained, name)]
        for name in ("base", "epoch_0")
    )
    assert base != tuned


@pytest.mark.parametrize("world_size", some_of([1, 2], [2]))
def test_killed_and_resumed(trained, tmp_path, world_size, monkeypatch):
    checkpoint = f"checkpoint_dir={trained / 'epoch_0'}"
    evaluate(tiny(tmp_path / "whole", checkpoint))
    expected = predictions(tmp_path / "whole", "epoch_0")
    cfg = tiny(tmp_path / "killed", checkpoint)
    folder = tmp_path / "killed" / "evaluation" / "epoch_0"
    evaluate(cfg, world_size, dies_at_batch=2)
    assert not (folder / "summary.json").exists()
    (part,) = folder.glob("part_0.jsonl")
    assert len([line for line in part.read_text().splitlines() if line]) == 16
    with part.open("a") as torn:
        torn.write('{"id": 3, "out')  # as if killed within a write
    bar = (tmp_path / "bar").open("w+")
    monkeypatch.setattr(evaluate_erjepa, "tqdm", functools.partial(tqdm, file=bar))
    summary = evaluate(cfg, world_size)
    assert predictions(tmp_path / "killed", "epoch_0") == expected
    assert not list(folder.glob("part_*"))
    assert summary.examples_per_second is not None
    shown = (tmp_path / "bar").read_text()
    assert "100%" in shown
    assert evaluate(cfg, world_size).examples_per_second is None  # all was there
    assert (tmp_path / "bar").read_text() == shown


def test_the_rate_is_that_of_the_slowest_rank(trained, tmp_path, monkeypatch):
    def with_a_slower_rank(part):
        return [part, ([], 1e6)]

    monkeypatch.setattr(evaluate_erjepa, "gather_objects", with_a_slower_rank)
    cfg = tiny(tmp_path, f"checkpoint_dir={trained / 'epoch_0'}")
    summary = evaluate(cfg)
    examples = summary.readings[summary.primary].examples
    assert summary.examples_per_second == examples / 1e6


def test_training_data_that_cannot_be_reached_is_not_needed(
    trained, tmp_path, monkeypatch
):
    def fail(*_):
        raise ConnectionError("the hub could not be reached.")

    monkeypatch.setattr(jobs, "build_dataset", fail)
    summary = evaluate(tiny(tmp_path, f"checkpoint_dir={trained / 'epoch_0'}"))
    assert summary.accuracy is not None and summary.unseen_pairs is None


def test_a_copied_run_has_its_answers(trained, tmp_path):
    evaluate(tiny(trained))
    shutil.copytree(trained, tmp_path / "copy", copy_function=shutil.copyfile)
    summary = evaluate(tiny(tmp_path / "copy"))
    assert summary.examples_per_second is None  # all was there


def test_other_settings_start_anew(trained, tmp_path):
    checkpoint = f"checkpoint_dir={trained / 'epoch_0'}"
    evaluate(tiny(tmp_path, checkpoint))
    summary = evaluate(tiny(tmp_path, checkpoint, "max_new_tokens=2"))
    assert summary.examples_per_second is not None
    assert max(p["tokens"] for p in predictions(tmp_path, "epoch_0")) == 2


TASKS = {
    "nl_rx": ("lines with a dog", ".*dog.*"),
    "gsm8k": ("How many?", "2 + 2 = <<2+2=4>>4\n#### 4"),
    "nq_open": ("who?", "a dog; the dog"),
    "spider": ("For db_id:[none]\n\nHow many?", "SELECT count(*) FROM dog"),
}


@pytest.mark.parametrize("task", some_of(TASKS, ["nl_rx", "spider"]))
def test_every_task(trained, tmp_path, task):
    source, target = TASKS[task]
    chats = [chat(f"{source} {i}", target) for i in range(7)]
    data = write_jsonl(tmp_path / "test.jsonl", chats)

    def config_of(builder, name="whole"):
        return tiny(
            tmp_path / name,
            f"checkpoint_dir={trained / 'epoch_0'}",
            f"task={task}",
            f"eval_dataset=erjepa.datasets.{builder}",
            f"eval_dataset.source={data}",
            *("max_new_tokens=4", "eval_batch_size=2"),
        )

    if task == "spider":
        with pytest.raises(ValueError, match="task=spider needs db_id, which"):
            evaluate(config_of("paired_dataset"))
    builder = "spider_dataset" if task == "spider" else "paired_dataset"
    summary = evaluate(config_of(builder), 2)
    assert summary.task == task and 0 <= summary.accuracy <= 1
    expected = predictions(tmp_path / "whole", "epoch_0")
    assert len(expected) == 7
    for prediction in expected:
        assert {"prompt", "output", "extracted", "llm_jepa"} <= prediction.keys()

    evaluate(config_of(builder, "killed"), 2, dies_at_batch=2)
    resumed = evaluate(config_of(builder, "killed"), 2)
    assert predictions(tmp_path / "killed", "epoch_0") == expected
    assert resumed.accuracy == summary.accuracy


def test_a_run_is_named_by_its_folder_for_its_newest_checkpoint(tmp_path):
    for name in ("epoch_0", "epoch_0_step_2"):
        (tmp_path / "run" / name).mkdir(parents=True)
    config = "defaults: tiny_synth\nepochs: 7\n"
    (tmp_path / "run" / "torchtune_config.yaml").write_text(config)
    for named in ("run", "run/epoch_0"):
        cfg = tiny(tmp_path, f"checkpoint_dir={tmp_path / named}")
        assert weights_to_score(cfg) == [tmp_path / "run" / "epoch_0"]
        assert load(str(tmp_path / named)).epochs == 7  # and its config


def test_nothing_to_score(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        evaluate(tiny(tmp_path))
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        evaluate(tiny(tmp_path, f"checkpoint_dir={tmp_path / 'absent'}"))


def test_a_perfect_model_scores_one(base, tmp_path):
    """One pair, learned by heart."""
    data = write_jsonl(tmp_path / "one.jsonl", [chat("say ab", "ab")] * 60)
    config = functools.partial(
        small_config,
        *(base, data, tmp_path / "out"),
        **{"epochs": 1, "optimizer__lr": 3e-2, "batch_size": 1, "max_new_tokens": 6},
        **{**paired("eval_dataset", data), "eval_dataset.max_examples": 1},
        task="null",
        save_adapter_weights_only=True,
    )
    cfg = config()
    train(cfg)
    summary = evaluate(cfg)
    assert (summary.task, summary.accuracy) == ("exact_match", 1)
    assert summary.targets_in_train == 1  # it is the pair trained on
    assert summary.unseen_pairs is summary.unseen_targets is None
    for source in ("null", tmp_path / "gone.jsonl"):
        unknown = evaluate(config(dataset__source=source))
        assert (unknown.accuracy, unknown.targets_in_train) == (1, None)


def test_scores_on_several_datasets_stay(trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    evaluation = tmp_path / "evaluation"
    shutil.rmtree(evaluation, ignore_errors=True)
    first = tiny(tmp_path, "eval_dataset.size=6")
    evaluate(first)
    expected = (evaluation / "epoch_0" / "predictions.jsonl").read_text()
    evaluate(tiny(tmp_path, "eval_dataset.size=5"))
    evaluate(tiny(tmp_path, "eval_dataset.size=5", "max_new_tokens=4"))
    evaluate(first)
    assert (evaluation / "epoch_0" / "predictions.jsonl").read_text() == expected
    names = sorted(folder.name for folder in evaluation.iterdir())
    assert len(names) == 2 and names[1].startswith("epoch_0_on_synthetic_nl_rx_")
    assert len(predictions(tmp_path, names[1])) == 5
    rows = (tmp_path / "README.md").read_text().splitlines()
    rows = [
        row.split(" | ")[2] for row in rows if row.startswith("| `epoch_0` | adapter")
    ]
    arguments = "split=test, grammar_seed=0"
    assert rows == [
        f"`synthetic_nl_rx_dataset(size={size}, {arguments})`" for size in (6, 5)
    ]


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """A run that holds out 5 of 64 pairs."""
    output_dir = tmp_path_factory.mktemp("held_out")
    train(tiny(output_dir, "validation.size=5", "stop.steps=1"), 1)
    return output_dir


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ("dataset.size=65", "dataset had 64 pairs, .*, and now has 65 pairs"),
        ("validation.seed=1", "validation.seed was 0 then"),
        ("validation.size=6", "validation.size held out 5 pairs then"),
        ("validation.size=4", None),
    ],
)
def test_trained_pairs_are_not_scored_as_held_out(held_out, changed, what):
    cfg = tiny(held_out, "eval_split=validation", "validation.size=5", changed)
    if what is None:
        assert evaluate(cfg).readings["exact_match"].examples == 4
        return
    with pytest.raises(ValueError, match=f"may have been trained on .* {what}"):
        evaluate(cfg)


def test_pairs_of_another_file_are_not_known_from_training(
    held_out, tmp_path, monkeypatch
):
    """Whether test pairs occur in training is told of the pairs that the run was trained on."""
    keys = ["eval_dataset.size=64", "eval_dataset.split=train", "validation.size=5"]
    assert evaluate(tiny(held_out, *keys)).targets_in_train > 50
    monkeypatch.setattr(jobs.log, "warning", (tmp_path / "said").write_text)
    for changed, said in (
        ("dataset.size=63", "dataset had 64 pairs, .*, and now has 63 pairs, .*"),
        ("validation.size=null", "validation.size held out 5 pairs then"),
        ("validation.seed=3", "validation.seed was 0 then"),
    ):
        summary = evaluate(tiny(held_out, *keys, changed))
        assert summary.targets_in_train is None and summary.unseen_pairs is None
        expected = f"{held_out}/epoch_0_step_1 was trained on .*, since {said}: "
        assert re.match(expected, (tmp_path / "said").read_text())
