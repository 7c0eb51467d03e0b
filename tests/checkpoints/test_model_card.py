"""The model card lists base, data, method, keys and scores."""

import json
import re

import pytest
import yaml
from omegaconf import OmegaConf

from erjepa.checkpoints import model_card as module
from erjepa.checkpoints.model_card import base_of, write_model_card
from erjepa.utils.summary import Summary
from tests.harness.model_cards import SUMMARY, config


def model_card(cfg, summaries, has_peft=True):
    summaries = {name: Summary(**keys) for name, keys in summaries.items()}
    keys = OmegaConf.to_yaml(cfg)
    return module.model_card(cfg, summaries, keys=keys, has_peft=has_peft)


@pytest.mark.parametrize(
    ("changes", "method", "terms"),
    [
        (
            {"replay__selection": "hard"},
            "ER-JEPA",
            "next-token loss (weight 1.0), JEPA loss (weight 1.0, 1 predictor tokens), "
            "hard replay (weight 1.0, capacity 10000)",
        ),
        (
            {"replay__weight": 0, "loss__jepa_weight": 2.0},
            "LLM-JEPA",
            "next-token loss (weight 1.0), JEPA loss (weight 2.0, 1 predictor tokens)",
        ),
        (
            {"replay__weight": 0, "loss__sigreg_weight": 0.02},
            "LLM-JEPA",
            "next-token loss (weight 1.0), JEPA loss (weight 1.0, 1 predictor tokens), "
            "sigreg (weight 0.02)",
        ),
        (
            {"replay__weight": 0, "loss__jepa_weight": 0},
            "SFT",
            "next-token loss (weight 1.0)",
        ),
    ],
)
def test_method(changes, method, terms):
    card = model_card(config(**changes), {})
    assert f"| method | {method}: {terms} |" in card
    assert (
        f"# HuggingFaceTB/SmolLM2-135M-Instruct, fine-tuned on nl\\_rx with {method}\n"
        in card
    )


def test_base_data_keys_and_scores():
    merged = {**SUMMARY, "weights": "merged", "accuracy": 0.49}
    other = {**SUMMARY, "pairs": "paired_dataset(source=x.jsonl)"}
    summaries = {"epoch_1": SUMMARY, "epoch_1_merged": merged}
    summaries["epoch_1_on_paired_1a2b3c"] = other
    card = model_card(config(seed=37), summaries)
    header, _, rest = card.removeprefix("---\n").partition("---\n")
    assert OmegaConf.create(header).base_model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "| data | `nl_rx_dataset(subset=turk, split=train)` |" in rest
    assert "| adapter | LoRA, rank 32, alpha 64 |" in rest and "| seed | 37 |" in rest
    assert (
        "| `epoch_1` | adapter | `nl_rx_dataset(split=test)` | `exact_match` | 50.00% | "
        "36.60% to 63.40% | 50 |\n"
        "| `epoch_1` | merged | `nl_rx_dataset(split=test)` | `exact_match` | 49.00% |"
        in rest
    )
    assert (
        "| `epoch_1` | adapter | `paired_dataset(source=x.jsonl)` | `exact_match` |"
        in rest
    )
    assert 'AutoPeftModelForCausalLM.from_pretrained("FOLDER/adapter")' in rest
    keys = rest.partition("```yaml\n")[2].partition("```")[0]
    assert OmegaConf.to_container(OmegaConf.create(keys)) == config(seed=37)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"checkpoint": "run/kept_on_disk"}, "kept_on_disk"),
        (
            {"checkpoint": "run/epoch_1/ema", "weights": "averaged merged"},
            "epoch_1_ema",
        ),
        ({"split": "validation"}, "epoch_1_validation"),
        ({"checkpoint": "base", "weights": "base"}, "base"),
        ({"checkpoint": None, "weights": None}, "folder"),  # answers of another program
    ],
)
def test_scores_name_their_checkpoint(keys, expected):
    card = model_card(config(), {"folder": SUMMARY | keys})
    assert f"| `{expected}` | {keys.get('weights') or 'adapter'} |" in card


def test_scores_of_a_continued_run_have_the_accuracy_of_the_earlier_one():
    before = {
        "checkpoint": "first/epoch_1",
        "examples": 50,
        "accuracy": 0.52,
        "kept": 24,
        "gained": 1,
        "lost": 2,
        "difference": -0.02,
        "interval": (-0.08, 0.04),
    }
    old = {**SUMMARY, "before": before}
    card = model_card(config(), {"epoch_1": SUMMARY, "epoch_1_on_first": old})
    assert "| examples | earlier accuracy | of |\n" in card
    assert "| 50 | 52.00% | `first/epoch_1` |\n" in card
    assert "| 50 |  |  |\n" in card


def test_texts_of_the_config_stay_in_their_places():
    hostile = "x\x85\n---\ntags: [evil]\n```\n| <script> |\n\n# `Title`"
    cfg = config(base_model=hostile, checkpointer__checkpoint_dir=f"/{hostile}")
    cfg["dataset"] = {"_component_": "a.b|c_dataset", "new_system_prompt": hostile}
    cfg["replay"]["selection"] = "x|y\nz"
    card = model_card(cfg, {"epoch_0": {**SUMMARY, "pairs": hostile}})
    header, _, rest = card.removeprefix("---\n").partition("---\n\n# ")
    assert yaml.safe_load(header) == {
        "base_model": hostile,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["torchtune", "lora", "er-jepa"],
    }
    before, _, keys = rest.partition("````yaml\n")
    assert yaml.safe_load(keys.removesuffix("````\n")) == cfg
    lines = before.splitlines()
    assert not {"---", "# `Title`", "| <script> |"} & {*lines}
    assert sum(line.startswith("```") for line in lines) == 2  # one block of Python
    table = [re.split(r"(?<!\\)\|", line) for line in lines if line.startswith("| ")]
    assert [len(cells) for cells in table] == [4] * 7 + [9] * 3


@pytest.mark.parametrize(
    ("changes", "base"),
    [
        ({}, "HuggingFaceTB/SmolLM2-135M-Instruct"),
        (
            {"checkpointer__checkpoint_dir": "/models/SmolLM2-135M-Instruct/"},
            "HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        ({"checkpointer__checkpoint_dir": "/runs/my: merged"}, "/runs/my: merged"),
        ({"base_model": "org/another"}, "/tmp/SmolLM2-135M-Instruct"),
    ],
)
def test_the_base_is_the_one_whose_weights_were_loaded(changes, base):
    card = model_card(config(**changes), {})
    header = card.removeprefix("---\n").partition("---\n")[0]
    assert OmegaConf.create(header).base_model == base
    assert f"| base | `{base}` |" in card


def test_weights_of_another_folder_are_not_those_of_the_repository():
    """Of a transformers model, whose path names tokenizer and architecture."""
    cfg = config(base_model="org/qwen", model__path="org/qwen")
    cfg["checkpointer"]["checkpoint_dir"] = "org/qwen"
    assert base_of(cfg) == "org/qwen"
    cfg["checkpointer"]["checkpoint_dir"] = (
        f"/hub/models--org--qwen/snapshots/{'a' * 40}"
    )
    assert base_of(cfg) == "org/qwen"  # downloaded
    cfg["checkpointer"]["checkpoint_dir"] = "/runs/first/epoch_1"
    assert base_of(cfg) == "/runs/first/epoch_1"


def test_a_folder_is_named_by_its_absolute_path(tmp_path, monkeypatch):
    """PEFT would look up a relative one on the hub."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "base").mkdir(parents=True)
    for path in ("models/base", "models/base/", str(tmp_path / "models" / "base")):
        cfg = config(base_model=path, model__path=path)
        cfg["checkpointer"]["checkpoint_dir"] = path
        assert base_of(cfg) == str(tmp_path / "models" / "base")


def test_what_is_carried_on_is_named():
    card = model_card(
        config(init_from="january", replay__init_from=["january", "a|b"]), {}
    )
    assert "| weights from | `january` |\n| memory from | `january`, `a\\|b` |" in card
    assert " from |" not in model_card(config(), {})


@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json", None])
def test_a_chat_template_is_only_named_where_there_is_one(tmp_path, file):
    (tmp_path / "epoch_0").mkdir()
    for name in ("adapter_model.pt", "manifest.json"):
        (tmp_path / "epoch_0" / name).touch()
    if file is not None:
        (tmp_path / "epoch_0" / file).write_text('{"chat_template": "a"}')
    (tmp_path / "base").mkdir()
    base = {"checkpointer__checkpoint_dir": str(tmp_path / "base")}
    OmegaConf.save(config(**base), tmp_path / "torchtune_config.yaml")
    write_model_card(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert ("folders' chat template builds the prompts" in card) == (file is not None)
    assert ("There is no chat template" in card) == (file is None)


def test_no_peft_adapter_is_promised_where_there_is_none():
    card = model_card(config(), {}, has_peft=False)
    assert "| adapter | LoRA" in card and "peft" not in card and "adapter/" not in card


@pytest.mark.parametrize("has_peft", [True, False])
def test_a_quantized_base_is_named(has_peft):
    card = model_card(config(model__quantize_base=True), {}, has_peft)
    assert "| adapter | QLoRA, rank 32, alpha 64 |" in card
    assert ("trained over the 4-bit base" in card) == has_peft
    assert "4-bit" not in model_card(config(), {}, has_peft)


@pytest.mark.parametrize(("is_quantized", "kind"), [(False, "DoRA"), (True, "QDoRA")])
def test_dora_is_named(is_quantized, kind):
    keys = {"model__use_dora": True, "model__quantize_base": is_quantized}
    card = model_card(config(**keys), {}, True)
    assert f"| adapter | {kind}, rank 32, alpha 64 |" in card


def test_adapters_in_the_base_are_named():
    card = model_card(config() | {"base_adapters": ["a|b", "c"]}, {})
    assert "2-135M-Instruct`, adapters merged in: `a\\|b`, `c` |" in card
    penalized = config() | {"orthogonal_weight": 0.5, "base_adapters": ["a"]}
    assert "O-LoRA's penalty (weight 0.5)" in model_card(penalized, {})
    assert "penalty (" not in model_card(penalized | {"base_adapters": None}, {})
    assert "merged in" not in model_card(config(), {})


def test_full_finetuning():
    cfg = config()
    cfg["model"] = {"_component_": "erjepa.models.smollm2.smollm2_135m"}
    card = model_card(cfg, {})
    assert "| trained | every weight (full fine-tuning) |" in card
    assert "tags:\n- torchtune\n- er-jepa\n---" in card
    assert "LoRA" not in card and "peft" not in card


def test_a_base_may_be_gone_and_its_name_too_long_for_a_path(tmp_path):
    cfg = config()
    cfg["checkpointer"]["checkpoint_dir"] = "/" + "a" * 5000
    OmegaConf.save(cfg, tmp_path / "torchtune_config.yaml")
    write_model_card(tmp_path)
    assert "a" * 5000 in (tmp_path / "README.md").read_text()


def test_a_file_of_the_users_own_stays(tmp_path):
    (tmp_path / "README.md").write_bytes("größer".encode("latin-1"))
    OmegaConf.save(config(), tmp_path / "torchtune_config.yaml")
    write_model_card(tmp_path)
    assert (tmp_path / "README.md").read_bytes() == "größer".encode("latin-1")


def test_card_of_a_folder_takes_the_place_of_the_bases(tmp_path):
    checkpoint = tmp_path / "epoch_0"
    checkpoint.mkdir()
    (checkpoint / "README.md").write_text("card of the base")
    for name in ("adapter_model.pt", "manifest.json"):
        (checkpoint / name).touch()
    write_model_card(tmp_path)
    assert (checkpoint / "README.md").read_text() == "card of the base"  # no config
    OmegaConf.save(config(), tmp_path / "torchtune_config.yaml")
    write_model_card(tmp_path)
    before = (tmp_path / "README.md").read_text()
    assert (checkpoint / "README.md").read_text() == before and "Not scored" in before
    results = tmp_path / "evaluation" / "epoch_0"
    results.mkdir(parents=True)
    own = {**SUMMARY, "checkpoint": str(checkpoint)}
    (results / "summary.json").write_text(json.dumps(own))
    other = tmp_path / "other" / "epoch_0"
    other.mkdir(parents=True)
    (other.parent / "torchtune_config.yaml").touch()
    scores_of_other = {**SUMMARY, "checkpoint": str(other), "pairs": "of another run"}
    (results.parent / "epoch_1").mkdir()
    (results.parent / "epoch_1" / "summary.json").write_text(
        json.dumps(scores_of_other)
    )
    write_model_card(tmp_path)
    after = (checkpoint / "README.md").read_text()
    assert (
        "| `epoch_0` | adapter | `nl_rx_dataset(split=test)` | `exact_match` |" in after
        and "Not scored" not in after
        and "of another run" not in after
    )


def test_a_folder_beside_the_checkpoints_keeps_its_own(tmp_path):
    exported = tmp_path / "gguf"
    exported.mkdir()
    (exported / "model-q4.gguf").touch()
    (exported / "README.md").write_text("my notes")
    OmegaConf.save(config(), tmp_path / "torchtune_config.yaml")
    write_model_card(tmp_path)
    assert (exported / "README.md").read_text() == "my notes"
