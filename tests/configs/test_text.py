"""The full text of a config equals the loaded config, and keeps its comments."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from erjepa.configs import config_names, config_path, load, merged
from erjepa.configs.text import as_yaml


def line(text, key):
    return next(row for row in text.splitlines() if row.strip().startswith(f"{key}:"))


@pytest.mark.parametrize("name", config_names())
def test_it_reads_as_the_config_and_needs_no_other(name, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(as_yaml(name))
    assert "defaults" not in OmegaConf.load(file)
    assert load(str(file)) == load(name)
    assert list(merged(str(file))) == list(merged(name)), "in the order of the file"


def test_the_commented_file_is_shown_as_it_is():
    name = "llama3_2_1b_synth"
    assert as_yaml(name) == Path(config_path(name)).read_text()


def test_comments_are_inherited():
    text = as_yaml("smollm2_135m_spider")
    assert line(text, "capacity").endswith(" [paper] the largest it tries")
    assert line(text, "predictor_tokens").endswith("# special tokens that no chat has")
    assert "\n\n# Objective\nloss:  # the loss of" in text
    assert text.startswith("# ER-JEPA fine-tuning of SmolLM2-135M-Instruct on Spider")
    assert text.count("# [paper]: printed in the ER-JEPA paper.") == 1


def test_what_a_tag_says_goes_with_its_value():
    overrides = "replay.capacity=30", "clip_grad_norm=3.0", "optimizer.weight_decay=0.1"
    text = as_yaml("tiny_synth", [*overrides])
    assert line(text, "lora_rank") == "  lora_rank: 64  # rank of the adapters"
    assert (
        line(text, "lora_alpha")
        == "  lora_alpha: 128  # adapters are scaled by lora_alpha / lora_rank"
    )
    assert line(text, "weight_decay") == "  weight_decay: 0.1"
    assert (
        line(text, "capacity")
        == "  capacity: 30  # slots (M); when full, one is evicted"
    )
    assert line(text, "clip_grad_norm").startswith("clip_grad_norm: 3.0  #")
    assert "[inferred] 16 pairs per step" not in text
    assert (
        line(text, "batch_size") == "batch_size: 16  # pairs per rank and micro-batch"
    )
    # The same values as in the paper.
    assert line(text, "fill").endswith("[paper]")


def test_overrides_of_every_kind(tmp_path):
    overrides = [
        "dataset=erjepa.datasets.paired_dataset",
        "dataset.source='it''s a #1: file.jsonl'",
        "dataset.column_map={input: question, output: answer}",
        "checkpoint_at_flops=[1e9,2e9]",
        "base_model='007'",
        "stop.steps=5",
    ]
    name, file = "llama3_2_1b_gsm8k", tmp_path / "mine.yaml"
    file.write_text(as_yaml(name, overrides))
    assert load(str(file)) == load(name, overrides)
    assert f"\n# With {' '.join(overrides)}\n" in file.read_text()


def test_an_override_of_several_lines_is_noted_on_one(tmp_path):
    override, file = "base_model=two\nlines", tmp_path / "mine.yaml"
    file.write_text(as_yaml("tiny_synth", [override]))
    assert load(str(file)) == load("tiny_synth", [override])
    assert "\n# With base_model=two lines\n" in file.read_text()


def test_files_of_any_style(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        "defaults: tiny_synth\n"
        "predictor_tokens:  # two\n"
        "  - a\n"
        "  - 'b # c'\n"
        "base_model: >-\n"
        "  a long\n"
        "  name\n"
    )
    text = as_yaml(str(own))
    assert line(text, "predictor_tokens") == "predictor_tokens: [a, 'b # c']  # two"
    assert line(text, "base_model").startswith("base_model: a long name")
    (tmp_path / "again.yaml").write_text(text)
    assert load(str(tmp_path / "again.yaml")) == load(str(own))


def test_anchors_are_written_out(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("defaults: tiny_synth\neval_batch_size: &n 3\nbatch_size: *n\n")
    again = tmp_path / "again.yaml"
    again.write_text(as_yaml(str(own)))
    cfg = load(str(again))
    assert cfg == load(str(own)) and cfg.batch_size == 3
