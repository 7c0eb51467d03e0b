"""Builds the model to evaluate and loads the weights of a checkpoint or of the base model."""

from dataclasses import replace
from pathlib import Path

import torch
from torchtune import training
from torchtune.modules import TransformerDecoder
from torchtune.modules.peft import get_adapter_params

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.fingerprint import digest_of_weights
from erjepa.checkpoints.peft_adapter import is_peft_adapter
from erjepa.configs import Config
from erjepa.training.model import sharding
from erjepa.training.model.adapter_layers import correct_dora
from erjepa.training.model.adapters import initial_adapter_state
from erjepa.training.model.build import (
    build_decoder,
    call_in_modules,
    require_same_model,
)
from erjepa.training.run.earlier_weights import (
    checkpoint_reader,
    found_adapters,
    load_adapter,
    load_base,
    load_whole_weights,
    require_trained_over,
    warn_of_other_base,
)


def empty_model(cfg: Config, device: torch.device) -> TransformerDecoder:
    """Build the model of a config without loading weights; with ``merged`` it is unquantized.

    Raises:
        ValueError: if ``merged`` is set and the model has no adapters; as
            :func:`~erjepa.training.model.build.build_decoder`.
    """
    is_quantized = cfg.model.get("quantize_base")
    plain = {"quantize_base": False} if cfg.merged and is_quantized else {}
    dtype = training.get_dtype(cfg.dtype, device=device)
    with training.set_default_dtype(dtype), device:
        model = build_decoder(cfg.model, **plain).eval()
    correct_dora(model)
    if cfg.merged and not get_adapter_params(model):
        raise ValueError(
            "merged=True, but the model has no adapters to merge; with merged=False "
            "its checkpoints are scored as they are"
        )
    return model


def load_weights(model: TransformerDecoder, cfg: Config, path: Path | None) -> None:
    """Load base weights and a checkpoint's adapter, with the scale that it was trained with; or its
    full weights, and adapters of no effect.

    Args:
        path: checkpoint, or an adapter of PEFT; ``None``: the base model.

    Raises:
        FileNotFoundError: if the checkpoint was deleted, or lacks the weights.
        ValueError: if they are damaged, or of another model.
    """
    adapter = None
    if path is not None and not path.is_dir():
        raise FileNotFoundError(f"{path} was deleted before it was loaded")
    reads_adapter = not cfg.merged and bool(get_adapter_params(model))
    if path is None or (reads_adapter and _is_adapter(path)):
        if path is not None:
            require_trained_over(path, cfg.base_adapters or [])
            adapter, _ = load_adapter(path, str(path), cfg, model)
        cfg = replace(cfg, base_adapters=found_adapters(cfg, path))
        base, _ = load_base(cfg, checkpoint_reader(cfg), model)
        if path is not None:
            warn_of_other_base(path, str(path), digest_of_weights(base))
    else:
        base = load_whole_weights(path, cfg)
    weights = {**base, **(adapter or initial_adapter_state(model, 0))}
    where = str(path or cfg.checkpointer.get("checkpoint_dir"))
    require_same_model(dict(model.named_parameters()), weights, where)
    device = next(model.parameters()).device
    sharding.load_weights(cfg, model, weights, device)
    if adapter is None:
        call_in_modules(model, "initialize_dora_magnitude")


def _is_adapter(path: Path) -> bool:
    return (path / checkpoint.ADAPTER).is_file() or is_peft_adapter(path)


def load_model(
    cfg: Config, device: torch.device, path: Path | None
) -> TransformerDecoder:
    """Build the model of a config and load its weights, see :func:`load_weights`."""
    model = empty_model(cfg, device)
    load_weights(model, cfg, path)
    return model
