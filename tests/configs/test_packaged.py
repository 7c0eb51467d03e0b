"""Every packaged config is valid."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torchtune.models.convert_weights import hf_to_tune
from torchtune.models.llama3_2 import lora_llama3_2_1b

from erjepa.configs import config_names, load, merged
from erjepa.configs.schema import KEYS, Config
from erjepa.replay import ReplaySettings
from erjepa.training.model.adapters import initial_adapter_state
from erjepa.utils.hub import is_repository
from tests.harness.transformers_models import write_folder

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
COMMENTED = "llama3_2_1b_synth"
# Families of transformers in names of configs; others are Llamas.
OF_FAMILY = {
    **{"qwen3_5": "qwen3_5_text", "qwen3": "qwen3", "smollm3": "smollm3"},
    **{"gemma3": "gemma3_text", "gemma4": "gemma4_text"},
}
OF_TRANSFORMERS = {name for name in CONFIGS if name.startswith(("hf_", *OF_FAMILY))}


def test_all_configs_are_packaged():
    assert config_names() == CONFIGS
    assert {COMMENTED, "llama3_2_1b_turk", "tiny_synth"} <= set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_config(name, tmp_path):
    cfg = load(name)
    if path := cfg.model.get("path"):  # a builder that reads the model's folder
        assert path == "MODEL" or is_repository(path)
        family = next((f for f in OF_FAMILY if f in name), "llama")
        write_folder(tmp_path, OF_FAMILY.get(family, family))
        cfg = load(name, [f"model.path={tmp_path}"])
        assert cfg.checkpointer.get("checkpoint_dir") == str(tmp_path)
    else:
        assert cfg.as_written() == merged(name), (
            "a config shows every key that can be tuned"
        )
    loss = cfg.loss.build()
    is_continual = name.endswith("_continual")
    assert (loss.lm_weight, loss.jepa_weight) == (1.0, not is_continual)
    with torch.device("meta"):
        model = cfg.model.build()
    optimizer = cfg.optimizer.build(list(model.parameters()))
    cfg.lr_scheduler.build(optimizer, num_training_steps=100)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_names_itself(name):
    assert load(name).output_dir == f"/tmp/erjepa/{name}"
    text = (FOLDER / f"{name}.yaml").read_text()
    assert re.search(rf"erjepa_recipe --config {name}\s", text)


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {COMMENTED}))
def test_only_what_differs_is_said(name):
    own = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    parent = merged(own.pop("defaults"))

    def repeated(keys, base):
        for key, value in keys.items():
            if not isinstance(value, dict):
                if key in base and base[key] == value:
                    yield key
            elif "_component_" not in value:
                yield from repeated(value, base[key])

    assert not list(repeated(own, parent))


def test_continual_configs_keep_what_was_learned_in_one_way():
    own = {
        name: OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
        for name in CONFIGS
        if name.endswith("_continual")
    }
    assert len(own) == 17
    for name in OF_TRANSFORMERS:
        assert {"loss", "replay"}.isdisjoint(own.pop(name))  # llama3_2_1b_continual's
        lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
        assert len(lines) <= 12 or name == "hf_continual"
    for keys in own.values():
        assert [keys[k] for k in ("loss", "replay")] == [
            own["tiny_continual"][k] for k in ("loss", "replay")
        ]


@pytest.mark.parametrize("name", [n for n in CONFIGS if n.endswith("_continual")])
def test_continual_configs_learn_from_few_pairs(name):
    """With the paper's rate, 1e-5, adapters learn next to nothing in a few hundred steps."""
    cfg = load(name)
    assert cfg.model.get("lora_rank") <= 64 and cfg.optimizer.get("lr") >= 3e-4


def test_the_commented_config_shows_the_defaults():
    cfg = load(COMMENTED)
    assert cfg.as_written().keys() == {*KEYS}
    default = {field.name: field.default for field in dataclasses.fields(Config)}
    differs = {
        key
        for key in KEYS
        if default[key] not in (dataclasses.MISSING, None)
        and getattr(cfg, key) != default[key]
    }
    own = {"base_model", "num_workers", "log_peak_memory_stats"}
    assert differs == own | {"replay", "profiler"}
    assert cfg.replay == ReplaySettings()


@pytest.mark.parametrize("name", ["llama3_2_1b_synth", "llama3_2_1b_turk"])
def test_the_papers_setting(name):
    cfg = load(name)
    model = cfg.model.arguments
    assert model["lora_rank"] == 512 and model["lora_alpha"] == 1024
    assert model["lora_dropout"] == 0.1 and model["apply_lora_to_mlp"]
    assert len(model["lora_attn_modules"]) == 4
    assert cfg.optimizer.get("lr") == 1e-5 and cfg.epochs == 6
    assert cfg.seed in (82, 23, 37, 84, 4)
    assert cfg.replay.selection == "content" and cfg.replay.capacity == 10_000


def test_llama_3_2_1b_takes_the_keys_of_its_checkpoint_exactly():
    """The Hugging Face checkpoint of Llama-3.2-1B has these keys and shapes."""
    width, kv, hidden, vocab = 2048, 512, 8192, 128_256
    shapes = {
        "model.embed_tokens.weight": (vocab, width),
        "model.norm.weight": (width,),
    }
    for i in range(16):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (width,),
            f"{layer}.post_attention_layernorm.weight": (width,),
            f"{layer}.self_attn.q_proj.weight": (width, width),
            f"{layer}.self_attn.k_proj.weight": (kv, width),
            f"{layer}.self_attn.v_proj.weight": (kv, width),
            f"{layer}.self_attn.o_proj.weight": (width, width),
            f"{layer}.mlp.gate_proj.weight": (hidden, width),
            f"{layer}.mlp.up_proj.weight": (hidden, width),
            f"{layer}.mlp.down_proj.weight": (width, hidden),
        }
    with torch.device("meta"):
        model = lora_llama3_2_1b(
            ["q_proj", "k_proj", "v_proj", "output_proj"],
            apply_lora_to_mlp=True,
            lora_rank=4,
        )
        checkpoint = {name: torch.empty(shape) for name, shape in shapes.items()}
        base = hf_to_tune(checkpoint, num_heads=32, num_kv_heads=8, dim=width)
    adapter = initial_adapter_state(model, seed=82)
    wanted = model.state_dict()
    assert not base.keys() & adapter.keys()
    assert base.keys() | adapter.keys() == wanted.keys()
    for name, tensor in {**base, **adapter}.items():
        assert tensor.shape == wanted[name].shape, name
    assert sum("lora" in name for name in adapter) == 16 * 7 * 2
