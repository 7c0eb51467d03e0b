"""Export of adapters to PEFT's format, into a separate folder, and their import.

With PEFT's files next to a merged model, transformers would load the base model that they name
and the adapter, instead of the merged model.

torchtune interleaves the two rotary halves of each head and Hugging Face does not, so the rows of
``q_proj`` and ``k_proj`` are permuted on export. torchtune 0.6.1 fails to permute DoRA's
magnitudes, and wrongly permutes Qwen's adapters, whose halves it does not interleave.
"""

import json
import logging
import math
import re
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

from erjepa.checkpoints.checkpoint import ADAPTER
from erjepa.utils.checked import checked
from erjepa.utils.files import PEFT
from erjepa.utils.jsonl import parse_json

log = utils.get_logger("INFO")

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_MODEL = "config.json"
_PEFT_PARTS = {
    "lora_a.weight": "lora_A.weight",
    "lora_b.weight": "lora_B.weight",
    "magnitude": "lora_magnitude_vector",
}


def move_peft_adapter(checkpoint: Path) -> None:
    """Move PEFT's files, if any, to ``adapter/`` and correct their rows, in a folder that a torchtune
    checkpointer wrote.
    """
    if not (checkpoint / WEIGHTS).is_file():
        return
    model = json.loads((checkpoint / _MODEL).read_bytes())
    weights = load_file(checkpoint / WEIGHTS)
    if _is_torchtunes(torch.load(checkpoint / ADAPTER, mmap=True, weights_only=True)):
        weights = {n: _rows(n, weight, model) for n, weight in weights.items()}
    folder = checkpoint / PEFT
    folder.mkdir()
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (checkpoint / WEIGHTS).unlink()
    (checkpoint / CONFIG).replace(folder / CONFIG)


def _is_torchtunes(names: Iterable[str]) -> bool:
    """Return whether names of adapter weights are torchtune's rather than transformers'."""
    return all(name.startswith(("layers.", "output.")) for name in names)


def peft_name(name: str) -> str:
    """Return PEFT's name for an adapter weight of a transformers model."""
    for ours, theirs in _PEFT_PARTS.items():
        if name.endswith(f".{ours}"):
            return f"base_model.model.{name.removesuffix(ours)}{theirs}"
    raise ValueError(f"{name} is no weight of an adapter")


def _rows(name: str, weight: Tensor, model: Mapping[str, Any]) -> Tensor:
    """Bring the rows of a weight that torchtune exported into Hugging Face's order."""
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

    r: int
    lora_alpha: float
    use_rslora: bool = False
    use_dora: bool = False
    # Other initializations change the base weights.
    init_lora_weights: Literal[True, False, "gaussian", "eva", "orthogonal"] = True
    base_model_name_or_path: str | None = None


# With these keys PEFT computes something that torchtune's adapters cannot.
_UNREAD = (
    *("rank_pattern", "alpha_pattern", "layer_replication", "use_qalora"),
    *("alora_invocation_tokens", "arrow_config", "use_bdlora"),
)


def is_peft_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def load_peft_adapter(
    folder: Path,
    like: Mapping[str, Tensor],
    base: Path,
    *,
    alpha: float,
    base_model: str,
) -> dict[str, Tensor]:
    """Load an adapter in PEFT's format as an equivalent one in torchtune's.

    PEFT scales ``B A`` by ``lora_alpha / r``, or by ``lora_alpha / sqrt(r)`` with rsLoRA. If the
    model's scale differs, ``B`` is multiplied by the ratio. A base with another name is a warning.

    Args:
        like: the model's adapter weights by name, on any device.
        base: folder of the base model, with its ``config.json``.
        alpha: the model's ``lora_alpha``.
        base_model: name of the base model.

    Returns:
        The weights by torchtune's names. Those that the model lacks keep their PEFT names.

    Raises:
        FileNotFoundError: if the weights are absent.
        ValueError: if a file cannot be read, the adapter is not plain LoRA or DoRA, or the model's
            adapters have another rank, kind or layers; the message names the key to set.
    """
    values = parse_json((folder / CONFIG).read_bytes(), str(folder / CONFIG))
    # In float32, in which another scale rounds no bfloat16 weight.
    found = {name: weight.float() for name, weight in _weights(folder).items()}
    unread = [key for key in _UNREAD if values.get(key)]
    if values.get("peft_type", "LORA") != "LORA":
        unread.insert(0, "peft_type")
    if unread:
        key = unread[0]
        raise ValueError(
            f"{folder / CONFIG}: {key}={values[key]}: adapters with it cannot be read; "
            "merge this one into its base with PEFT, and set checkpointer.checkpoint_dir"
        )
    config = checked(_Config, values, str(folder / CONFIG))
    if not _is_torchtunes(like):
        # Of a model that also reads images.
        inner = re.compile(r"\.(language_model|text_model)\.")
        found = {inner.sub(".", n): w for n, w in found.items()}
    model = json.loads((base / _MODEL).read_bytes())
    weights = {}
    for name, ours in like.items():
        # Exporting row numbers shows where the export moves each row.
        rows = torch.arange(len(ours)).view(-1, *[1] * (ours.dim() - 1))
        ((their_name, order),) = _exported({name: rows}, model).items()
        if (weight := found.pop(their_name, None)) is None:
            continue
        if weight.shape == ours.shape:
            weight = torch.empty_like(weight).index_copy_(0, order.flatten(), weight)
        weights[name] = weight
    _require_settings(folder, config, like, weights, found)
    scale = config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
    ratio = scale * config.r / alpha
    weights = rescaled(weights, ratio)
    theirs = config.base_model_name_or_path
    said = "" if ratio == 1 else f"; B times {ratio:g}, for lora_alpha={alpha:g}"
    utils.log_rank_zero(log, f"{folder} is an adapter of {theirs}{said}.")
    ours_by_name = {Path(base_model).name, base.absolute().name}
    if theirs is not None and Path(theirs).name not in ours_by_name:
        utils.log_rank_zero(
            log,
            f"{folder} was trained over {theirs}, and the base of this run is {base_model} in "
            f"{base}: over other weights the adapter computes something else",
            level=logging.WARNING,
        )
    return {**weights, **found}


def _require_settings(
    folder: Path,
    config: _Config,
    like: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    unknown: Mapping[str, Tensor],
) -> None:
    """Raise a ValueError if the model's adapters have another rank, kind or layers.

    Args:
        like: the model's adapter weights.
        weights: those of them that the adapter holds.
        unknown: further weights of the adapter, by their PEFT names.
    """
    rank = next(len(weight) for name, weight in like.items() if "lora_a" in name)
    has_dora = any("magnitude" in name for name in like)
    if config.r != rank:
        raise ValueError(
            f"{folder} has rank {config.r}, and the model {rank}; set model.lora_rank={config.r}"
        )
    if config.use_dora != has_dora:
        theirs, ours = ("DoRA", "LoRA") if config.use_dora else ("LoRA", "DoRA")
        raise ValueError(
            f"{folder} is of {theirs} and the model {ours}; "
            f"set model.use_dora={config.use_dora}"
        )
    lacks = {n.split(".")[-3] for n in like if "lora_a" in n and n not in weights}
    has = {n.split(".")[-3] for n in unknown if "lora_A" in n}
    differences = [
        f"{what} {', '.join(sorted(layers))}"
        for what, layers in (("lacks", lacks), ("also has", has))
        if layers
    ]
    if differences:
        keys = "model.lora_target_modules"
        if _is_torchtunes(like):
            keys = "model.lora_attn_modules, apply_lora_to_mlp and apply_lora_to_output"
        raise ValueError(
            f"{folder} has adapters of other layers than the model: it "
            f"{' and '.join(differences)}; set {keys} to the layers of the adapter"
        )


def rescaled(adapter: Mapping[str, Tensor], ratio: float) -> dict[str, Tensor]:
    """Multiply the update ``B A`` of each layer by ``ratio``, in B."""
    return {n: w * ratio if "lora_b" in n else w for n, w in adapter.items()}


def _weights(folder: Path) -> dict[str, Tensor]:
    if (folder / WEIGHTS).is_file():
        try:
            return load_file(folder / WEIGHTS)
        except SafetensorError as error:
            raise ValueError(
                f"{folder / WEIGHTS} is damaged or cut short ({error}); copy it again"
            ) from None
    if (old := (folder / WEIGHTS).with_suffix(".bin")).is_file():
        return torch.load(old, map_location="cpu", weights_only=True)
    raise FileNotFoundError(f"{folder} has an {CONFIG} and no {WEIGHTS}")


def _exported(
    weights: dict[str, Tensor], model: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Convert adapter weights to PEFT's names, with rows in Hugging Face's order."""
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
