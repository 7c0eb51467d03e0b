"""Builds the model of a run on the meta device, then shards it and loads its weights."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchtune import training, utils

from erjepa.configs import Component, Config
from erjepa.objective import Backend, PackedDecoder
from erjepa.packing import BLOCK, Attention
from erjepa.training.model.adapter_layers import quicken_dropout
from erjepa.training.model.adapters import initial_adapter_state
from erjepa.training.model.precision import dtypes_of
from erjepa.training.model.sharding import load_weights, shard, trained_by_name
from erjepa.training.model.trainable import TrainableWeights

log = utils.get_logger("INFO")


class StartWeights(NamedTuple):
    base: dict[str, Tensor]  # of the base model, by name
    # Adapters, or all weights, of the resumed run or of ``init_from``; ``None``: initialize them.
    trained: dict[str, Tensor] | None
    # Embeddings of the predictor tokens, [k, H]; ``None``: initialize them.
    predictor: Tensor | None
    averaged: dict[str, Any] | None  # see :meth:`AveragedWeights.state_dict`
    merged: Sequence[Mapping[str, Tensor]]  # adapters in the base, oldest first


def build_decoder(model: Component, **arguments: Any) -> nn.Module:
    """Build the decoder of a config, without its weights.

    Raises:
        ValueError: if it is to be quantized, and the size of a layer does not allow it.
    """
    try:
        return model.build(**arguments)
    except AssertionError as error:  # of torchao
        if not model.get("quantize_base"):
            raise
        raise ValueError(
            "model.quantize_base=True: NF4 needs a multiple of 16,384 weights in each quantized "
            f"layer, which this model does not have ({error}); set it to False"
        ) from error


def attention_for(decoder: nn.Module, cfg: Config, attention: Attention) -> Attention:
    """Return ``attention``, or ``causal`` if ``attention=auto`` and the decoder needs it.

    Raises:
        ValueError: for ``flex``, if ``row_length`` is not a multiple of FlexAttention's block.
    """
    is_packable = not isinstance(decoder, Backend) or decoder.reads_packed_rows
    if not is_packable and cfg.attention == "auto":
        return "causal"
    if attention == "flex" and (cfg.row_length is None or cfg.row_length % BLOCK):
        raise ValueError(
            f"row_length={cfg.row_length}: FlexAttention needs a multiple of {BLOCK}, its "
            "block. Or set attention=dense"
        )
    return attention


def build_model(
    cfg: Config,
    device: torch.device,
    num_predictor_tokens: int,
    attention: Attention,
) -> tuple[PackedDecoder, TrainableWeights]:
    """Build the model of a run on the meta device. Return it with its trainable weights.

    Args:
        num_predictor_tokens: k; 0 if no pair has predictor tokens.

    Raises:
        ValueError: if a builder adds adapters without a parameter for their rank or alpha, or if
            a model without adapters is to freeze its predictor tokens, or only to save adapters;
            as :func:`build_decoder`.
    """
    dtype, trainable_dtype = dtypes_of(cfg)
    with training.set_default_dtype(dtype), torch.device("meta"):
        decoder = build_decoder(cfg.model)
    attention = attention_for(decoder, cfg, attention)
    trainable = TrainableWeights(
        decoder, cfg.model, trainable_dtype=trainable_dtype, dtype=dtype
    )
    for name in ("lora_rank", "lora_alpha"):
        if trainable.has_adapters and cfg.model.get(name) is None:
            raise ValueError(
                f"model={cfg.model.path} adds adapters and has no parameter {name}, which "
                "scales and merges them; give it one"
            )
    if not (trainable.has_adapters or cfg.train_predictor_tokens):
        raise ValueError(
            "train_predictor_tokens=False: a model without adapters trains all embeddings"
        )
    num_trained_tokens = num_predictor_tokens if cfg.train_predictor_tokens else 0
    if num_trained_tokens and getattr(decoder, "reads_tokens", False):
        raise ValueError(
            "train_predictor_tokens=True trains embeddings, and layers of this model also read the "
            "tokens; set it to False, or num_predictor_tokens=0"
        )
    if cfg.save_adapter_weights_only and not trainable.has_adapters:
        raise ValueError(
            "save_adapter_weights_only=True, but the model has no adapters; set it to False"
        )
    if device.type == "cpu":
        quicken_dropout(decoder)
    model = PackedDecoder(
        decoder,
        num_trained_tokens=num_trained_tokens,
        trainable_dtype=trainable_dtype,
        attention=attention,
    )
    return model, trainable


def set_up_model(
    cfg: Config,
    model: PackedDecoder,
    start: StartWeights,
    predictor_ids: Sequence[int],
    device: torch.device,
) -> None:
    """Compile, checkpoint activations and shard a model from :func:`build_model` as configured,
    then load its initial weights.

    Raises:
        ValueError: if the weights do not match the model.
    """
    start_time = time.perf_counter()
    decoder = model.decoder
    dtype, _ = dtypes_of(cfg)
    weights = _initial_weights(cfg, model, start, predictor_ids)
    if cfg.compile:
        for layer in decoder.layers:
            layer.compile(backend=os.environ.get("TORCH_COMPILE_BACKEND", "inductor"))
    if cfg.enable_activation_checkpointing:
        checkpoint_layers(model)
    shard(cfg, model, device)
    load_weights(cfg, model, weights, device)
    _place_buffers(model, device)
    with training.set_default_dtype(dtype), device:
        call_in_modules(model, "rope_init")
    if start.trained is None:
        call_in_modules(model, "initialize_dora_magnitude")
    training.validate_no_params_on_meta_device(model)
    seconds = time.perf_counter() - start_time
    utils.log_rank_zero(log, f"Sharding and loading the model took {seconds:.1f} s.")


def checkpoint_layers(model: PackedDecoder) -> None:
    """Recompute the activations of each layer, of whatever kind, in the backward pass."""
    kinds = {type(layer) for layer in model.decoder.layers}
    training.set_activation_checkpointing(model, auto_wrap_policy=kinds)


def _initial_weights(
    cfg: Config,
    model: PackedDecoder,
    start: StartWeights,
    predictor_ids: Sequence[int],
) -> dict[str, Tensor]:
    """Return the full initial weights by name in the model."""
    decoder = model.decoder
    weights = {**start.base, **initial_adapter_state(decoder, cfg.drawn_seed)}
    base_dir = cfg.checkpointer.get("checkpoint_dir")
    require_same_model(dict(decoder.named_parameters()), weights, base_dir)
    if start.trained is not None:
        where = "the checkpoint that this run starts from"
        require_same_model(trained_by_name(decoder), start.trained, where)
        weights.update(start.trained)
    named = {f"decoder.{name}": weight for name, weight in weights.items()}
    if model.predictor is not None:
        predictor = start.predictor
        if predictor is None:
            predictor = model.initial_predictor(weights, list(predictor_ids))
        if predictor.shape != model.predictor.shape:
            raise ValueError(
                f"the checkpoint that this run starts from has {len(predictor)} predictor "
                f"tokens, but num_predictor_tokens={len(model.predictor)}; use the same number"
            )
        named["predictor"] = predictor
    return named


def require_same_model(
    model: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: str
) -> None:
    """Compare names and shapes before anything is loaded; ``where`` is the source of ``weights``.

    Raises:
        ValueError: naming the first missing weight, the first unknown one and the first of
            another shape, with the number of each.
    """
    differences = {
        "it lacks": [name for name in model if name not in weights],
        "it has": [name for name in weights if name not in model],
        "of another shape,": [
            f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}"
            for name, tensor in model.items()
            if name in weights and weights[name].shape != tensor.shape
        ],
    }
    differs = [
        f"{what} {names[0]} ({len(names)} such)"
        for what, names in differences.items()
        if names
    ]
    if differs:
        raise ValueError(
            f"{where} holds another model than the config's: {'; '.join(differs)}. Name "
            "the model that was saved there, with its arguments, or its checkpoint"
        )


def _place_buffers(model: PackedDecoder, device: torch.device) -> None:
    """Move buffers that have values to ``device``; those on the meta device get theirs later."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if not buffer.is_meta:
                setattr(module, name, buffer.to(device))


def call_in_modules(model: nn.Module, method: str) -> None:
    """Call a method of all modules that have it."""
    for module in model.modules():
        if function := getattr(module, method, None):
            function()


def activation_offloading(
    cfg: Config, model: PackedDecoder, device: torch.device
) -> AbstractContextManager[Any]:
    """Return the context of each forward pass, which offloads activations to the CPU if enabled.

    Raises:
        RuntimeError: if enabled without CUDA or activation checkpointing.
    """
    enabled = cfg.enable_activation_offloading
    if enabled and not (device.type == "cuda" and cfg.enable_activation_checkpointing):
        raise RuntimeError(
            "enable_activation_offloading needs CUDA and "
            "enable_activation_checkpointing=True"
        )
    return training.get_act_offloading_ctx_manager(model.decoder, enabled)
