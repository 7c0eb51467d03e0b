"""The adapter in PEFT's format, in a folder of its own and as PEFT reads it.

Beside a merged model, transformers would take PEFT's files for the model: it would load the
base that they name, and the adapter on top.

torchtune keeps the two rotary halves of each head interleaved and Hugging Face apart, so rows
of ``q_proj`` and ``k_proj`` change places on export. torchtune 0.6.1 forgets DoRA's magnitudes,
and moves the rows of Qwen's adapters, whose halves it keeps apart as well.
"""

import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

FOLDER = "adapter"
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"


def set_peft_adapter_apart(checkpoint: Path) -> None:
    """Move PEFT's files of a checkpoint to ``adapter/`` and put right what is wrong in them.

    Args:
        checkpoint (Path): folder that a torchtune checkpointer wrote, with the base model's
            ``config.json``. Without PEFT's files nothing happens.
    """
    if not (checkpoint / WEIGHTS).is_file():
        return
    model = json.loads((checkpoint / "config.json").read_text())
    weights = load_file(checkpoint / WEIGHTS)
    config = json.loads((checkpoint / CONFIG).read_text())
    config["use_dora"] = any("magnitude" in name for name in weights)

    folder = checkpoint / FOLDER
    folder.mkdir()
    weights = {name: _rows(name, weight, model) for name, weight in weights.items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    for name in (WEIGHTS, CONFIG):
        os.remove(checkpoint / name)


def _rows(name: str, weight: Tensor, model: dict[str, Any]) -> Tensor:
    """The weight with its rows in Hugging Face's order."""
    if "q_proj" in name:
        heads = model["num_attention_heads"]
    elif "k_proj" in name:
        heads = model["num_key_value_heads"]
    else:
        return weight
    is_qwen = model["model_type"] == "qwen2"
    if "magnitude" in name and not is_qwen:
        return weight.view(heads, -1, 2).transpose(1, 2).flatten().contiguous()
    if "lora_B" in name and is_qwen:
        rank = weight.shape[1]
        interleaved = weight.view(heads, 2, -1, rank).transpose(1, 2)
        return interleaved.reshape(-1, rank)
    return weight
