"""Adapters in PEFT's format: written into a separate folder, and read from any.

Beside a merged model, transformers would take PEFT's files for the model: it would load the
base that they name, and the adapter on top.

torchtune interleaves the two rotary halves of each head and Hugging Face does not, so rows of
``q_proj`` and ``k_proj`` change places on export. torchtune 0.6.1 forgets DoRA's magnitudes,
and moves the rows of Qwen's adapters, whose halves it does not interleave either.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchtune import utils
from torchtune.models.convert_weights import tune_to_peft_adapter_weights

from erjepa.utils.checked import checked

log = utils.get_logger("INFO")

FOLDER = "adapter"
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_MODEL = "config.json"
_TRAINED = "adapter_model.pt"  # the same weights by their names in the model
_PEFT_PARTS = {
    "lora_a.weight": "lora_A.weight",
    "lora_b.weight": "lora_B.weight",
    "magnitude": "lora_magnitude_vector",
}


def move_peft_adapter(checkpoint: Path) -> None:
    """Move PEFT's files of a checkpoint, if there are any, to ``adapter/`` and correct them.

    Args:
        checkpoint: folder that a torchtune checkpointer wrote, with the base model's
            ``config.json``.
    """
    if not (checkpoint / WEIGHTS).is_file():
        return
    model = json.loads((checkpoint / _MODEL).read_text())
    weights = load_file(checkpoint / WEIGHTS)
    if _is_torchtunes(torch.load(checkpoint / _TRAINED, mmap=True, weights_only=True)):
        weights = {n: _rows(n, weight, model) for n, weight in weights.items()}
    folder = checkpoint / FOLDER
    folder.mkdir()
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((checkpoint / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    for name in (WEIGHTS, CONFIG):
        os.remove(checkpoint / name)


def _is_torchtunes(names: Iterable[str]) -> bool:
    """Whether names of an adapter's weights are of torchtune's model, or of transformers'."""
    return all(name.startswith("layers.") for name in names)


def peft_name(name: str) -> str:
    """PEFT's name of an adapter's weight in a model of transformers."""
    for ours, theirs in _PEFT_PARTS.items():
        if name.endswith(f".{ours}"):
            return f"base_model.model.{name.removesuffix(ours)}{theirs}"
    raise ValueError(f"{name} is no weight of an adapter")


def _rows(name: str, weight: Tensor, model: Mapping[str, Any]) -> Tensor:
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


@dataclass(frozen=True)
class _Config:
    """Keys of ``adapter_config.json`` that decide what an adapter computes."""

    peft_type: Literal["LORA"]
    r: int
    lora_alpha: float
    use_rslora: bool = False
    # Other initializations change the base that the adapter belongs to.
    init_lora_weights: Literal[True, False, "gaussian", "eva", "orthogonal"] = True
    base_model_name_or_path: str | None = None


# With these PEFT computes what torchtune's adapters cannot.
_UNREAD = (
    *("rank_pattern", "alpha_pattern", "layer_replication", "use_qalora"),
    *("alora_invocation_tokens", "arrow_config", "use_bdlora"),
)


def is_peft_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def load_peft_adapter(
    folder: Path, like: Mapping[str, Tensor], base: Path, *, alpha: float
) -> dict[str, Tensor]:
    """An adapter in PEFT's format as torchtune's, which computes the same.

    PEFT scales ``B A`` by ``lora_alpha / r``, or by ``lora_alpha / sqrt(r)`` with rsLoRA. Where
    the model's scale is another one, ``B`` is multiplied by their ratio.

    Args:
        folder: that PEFT wrote.
        like: the model's adapter weights by name, of any device: rank and targets.
        base: folder of the base model, with its ``config.json``.
        alpha: the model's ``lora_alpha``.

    Returns:
        The weights by torchtune's names. What the model has no place for keeps its name.

    Raises:
        FileNotFoundError: if the weights are absent.
        ValueError: if a file cannot be read, or the adapter is not plain LoRA or DoRA.
    """
    try:
        values = json.loads((folder / CONFIG).read_text())
        found = _weights(folder)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / CONFIG}: not JSON: {error}") from None
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS}: {error}") from None
    config = checked(_Config, values, str(folder / CONFIG))
    for key in _UNREAD:
        if values.get(key):
            raise ValueError(
                f"{folder / CONFIG}: {key}={values[key]}: adapters with it cannot be read; "
                "merge this one into its base with PEFT, and set checkpointer.checkpoint_dir"
            )
    model = json.loads((base / _MODEL).read_text())
    weights = {}
    for name, ours in like.items():
        # The export, of row numbers: where each row of the weight went.
        rows = torch.arange(len(ours)).view(-1, *[1] * (ours.dim() - 1))
        ((their_name, order),) = _exported({name: rows}, model).items()
        if (weight := found.pop(their_name, None)) is None:
            continue
        if weight.shape == ours.shape:
            weight = torch.empty_like(weight).index_copy_(0, order.flatten(), weight)
        weights[name] = weight
    scale = config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
    if (ratio := scale * config.r / alpha) != 1:
        for name in weights:
            if "lora_b" in name:
                weights[name] = weights[name] * ratio
    said = "" if ratio == 1 else f"; B times {ratio:g}, for lora_alpha={alpha:g}"
    utils.log_rank_zero(
        log, f"{folder} is an adapter of {config.base_model_name_or_path}{said}."
    )
    return {**weights, **found}


def _weights(folder: Path) -> dict[str, Tensor]:
    if (folder / WEIGHTS).is_file():
        return load_file(folder / WEIGHTS)
    if (old := (folder / WEIGHTS).with_suffix(".bin")).is_file():
        return torch.load(old, map_location="cpu", weights_only=True)
    raise FileNotFoundError(f"{folder} has an {CONFIG} and no {WEIGHTS}")


def _exported(
    weights: dict[str, Tensor], model: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Adapter weights by PEFT's names, their rows in Hugging Face's order."""
    if not _is_torchtunes(weights):
        return {peft_name(name): weight for name, weight in weights.items()}
    by_name = tune_to_peft_adapter_weights(
        weights,
        num_heads=model["num_attention_heads"],
        num_kv_heads=model["num_key_value_heads"],
        dim=model["hidden_size"],
        head_dim=model.get("head_dim"),
    )
    return {name: _rows(name, weight, model) for name, weight in by_name.items()}
