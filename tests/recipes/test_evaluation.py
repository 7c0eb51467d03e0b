"""The evaluation recipe scores what training wrote."""

import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import erjepa.config
from erjepa_recipe.evaluate_erjepa import EvaluationRecipeERJEPA
from tests.recipes.harness import make_config, on_ranks, overrides_for, train


def evaluate(cfg, world_size=1):
    def run():
        recipe = EvaluationRecipeERJEPA(cfg)
        recipe.setup(cfg)
        return recipe.evaluate()

    return on_ranks(run, world_size)[0]


def tiny(output_dir, *overrides):
    """The packaged demo config, cut short."""
    erjepa.config.register_resolvers()
    short = ["dataset.size=64", "eval_dataset.size=40", "eval_batch_size=16"]
    return make_config([f"output_dir={output_dir}", *short, *overrides], "tiny_synth")


def predictions(output_dir, name):
    lines = (Path(output_dir) / "evaluation" / name / "predictions.jsonl").read_text()
    return [json.loads(line) for line in lines.splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("trained")
    train(tiny(output_dir), 1)
    return output_dir


def test_adapter_and_merged_weights_and_any_ranks_score_alike(trained, tmp_path):
    from_adapter = evaluate(tiny(trained))
    expected = predictions(trained, "epoch_0")
    assert from_adapter["examples"] == len(expected) == 40
    assert len({p["output"] for p in expected}) > 1

    merged = tmp_path / "merged"
    shutil.copytree(trained / "epoch_0", merged)
    for file in merged.glob("adapter*"):
        file.unlink()
    for overrides, ranks in (
        ([f"checkpoint_dir={merged}"], 1),
        ([f"checkpoint_dir={merged}"], 2),
        ([f"checkpoint_dir={trained / 'epoch_0'}"], 2),
    ):
        summary = evaluate(tiny(tmp_path, *overrides), ranks)
        assert predictions(tmp_path, Path(summary["checkpoint"]).name) == expected


def test_base_only_ignores_the_adapter(trained):
    summary = evaluate(tiny(trained, "base_only=True"))
    assert summary["checkpoint"] == "base" and summary["accuracy"] == 0
    assert predictions(trained, "base") != predictions_or_none(trained, "epoch_0")


def predictions_or_none(output_dir, name):
    try:
        return predictions(output_dir, name)
    except FileNotFoundError:
        return None


def test_nothing_to_score(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        evaluate(tiny(tmp_path))
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        evaluate(tiny(tmp_path, f"checkpoint_dir={tmp_path / 'absent'}"))


def test_a_perfect_model_scores_one(base, tmp_path):
    """One pair, learned by heart."""
    data = tmp_path / "one.jsonl"
    turns = [("user", "say ab"), ("assistant", "ab")]
    record = {"messages": [{"role": r, "content": c} for r, c in turns]}
    data.write_text(json.dumps(record) + "\n")
    overrides = overrides_for(
        base, data, tmp_path / "out", epochs=60, optimizer__lr=3e-2, batch_size=1
    )
    overrides += [
        "~eval_dataset.subset",
        "eval_dataset=erjepa.datasets.paired_dataset",
        f"eval_dataset.source={data}",
        "max_new_tokens=6",
    ]
    cfg = make_config(overrides)
    cfg = OmegaConf.merge(cfg, {"save_adapter_weights_only": True})
    train(cfg, 1)
    assert evaluate(cfg)["accuracy"] == 1
