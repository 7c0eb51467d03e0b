"""Builders of transformers' decoders, with or without adapters, from a model folder's config."""

import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from torch import nn
from torch.overrides import TorchFunctionMode
from torchtune.modules.peft import DoRALinear, LoRALinear
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from erjepa.models.transformers.decoder import TransformersDecoder

ALL_LINEAR = "all-linear"


def empty_model(path: str, revision: str | None = None) -> PreTrainedModel:
    """Build the causal language model of a folder on the meta device, with its buffers on the CPU.

    For a model that also reads images, this is its text model. Buffers that checkpoints store, such
    as Gemma 4's factors of layers, become frozen parameters: these are loaded, sharded and saved.

    Raises:
        ValueError: if this release of transformers does not know it, or it is not a decoder.
    """
    values, _ = PretrainedConfig.get_config_dict(path, revision=revision)
    kind = values.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise ValueError(
            f"model.path={path}: transformers {transformers.__version__} knows no model_type "
            f"{kind}; pip install -U transformers, or choose another model"
        )
    config = AutoConfig.from_pretrained(path, revision=revision).get_text_config()
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"model.path={path}: {kind} is not a decoder that generates text; choose another model"
        )
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # weights are loaded and exported unquantized
    dtype = torch.get_default_dtype()
    with torch.device("cpu"), init_empty_weights(include_buffers=False):
        with no_init_weights(), _EmptyOnMeta():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    stored = model.state_dict()
    for name in [n for n, _ in model.named_buffers() if n in stored]:
        owner, _, last = name.rpartition(".")
        module = model.get_submodule(owner)
        buffer = module._buffers.pop(last)
        if not buffer.is_floating_point():
            raise ValueError(
                f"model.path={path}: {kind} stores {name}, a buffer of {buffer.dtype}, and only "
                "floating-point ones are loaded; choose another model"
            )
        constant = nn.Parameter(buffer.to("meta"), requires_grad=False)
        module.register_parameter(last, constant)
    return model


class _EmptyOnMeta(TorchFunctionMode):
    """Places ``torch.empty`` on the meta device: a mixture's experts may exceed this machine's memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        on_meta = {"device": "meta"} if func is torch.empty else {}
        return func(*args, **{**(kwargs or {}), **on_meta})


def text_model_in(path: str) -> tuple[str, str] | None:
    """Return the names of the base in :func:`empty_model` of a folder, such as ``model``, and in
    the model that transformers loads from it, such as ``model.language_model``; ``None`` if that
    is a text model, too, or cannot be built.
    """
    config, model = AutoConfig.from_pretrained(path), empty_model(path)
    mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in mapping:
        mapping = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if type(config) not in mapping or mapping[type(config)] is type(model):
        return None
    try:
        with init_empty_weights(include_buffers=False), no_init_weights():
            whole = mapping[type(config)](config)
    except ImportError:  # of a library that reads images
        return None
    kind, prefix = type(model.base_model), model.base_model_prefix
    names = (name for name, module in whole.named_modules() if type(module) is kind)
    return next(((prefix, name) for name in names), None)


def decoder(path: str, revision: str | None = None) -> TransformersDecoder:
    """Build a decoder of transformers without its weights, for full fine-tuning.

    Args:
        path: folder of the model, or its repository on the Hugging Face Hub.

    Raises:
        ValueError: if it stores constants, which full fine-tuning would train.
    """
    model = empty_model(path, revision)
    constants = (n for n, p in model.named_parameters() if not p.requires_grad)
    if name := next(constants, None):
        raise ValueError(
            f"{path} stores {name}, a constant that full fine-tuning would train; train adapters: "
            "set model=erjepa.models.transformers.lora_decoder"
        )
    return _on_default_device(TransformersDecoder(model))


def lora_decoder(
    path: str,
    revision: str | None = None,
    lora_rank: int = 8,
    lora_alpha: float = 16,
    lora_dropout: float = 0.0,
    lora_target_modules: str | Sequence[str] = ALL_LINEAR,
    use_dora: bool = False,
    quantize_base: bool = False,
) -> TransformersDecoder:
    """Build the same decoder with LoRA; other arguments are those of torchtune's builders.

    Args:
        lora_target_modules: last name components of the linear layers to adapt, such as ``q_proj``;
            ``all-linear``: all except the output projection, as in PEFT.

    Raises:
        ValueError: if the model has no such layers.
    """
    model = empty_model(path, revision)
    linear = {
        name: module
        for name, module in model.base_model.named_modules()
        if type(module) is nn.Linear  # not a subclass, such as a router of PhiMoE
        and not _is_read_by_kernel(model.base_model, name)
    }
    named = {name.rpartition(".")[2] for name in linear}
    wanted = named if lora_target_modules == ALL_LINEAR else set(lora_target_modules)
    if unknown := sorted(wanted - named):
        raise ValueError(
            f"model.lora_target_modules: {unknown[0]} is not a linear layer of {path} that "
            f"adapters can change; it has {', '.join(sorted(named))}"
        )
    if not wanted:
        raise ValueError(f"{path} has no linear layers to adapt; fine-tune it in full")
    adapted = DoRALinear if use_dora else LoRALinear
    for name, module in linear.items():
        parent, _, last = name.rpartition(".")
        if last not in wanted:
            continue
        with no_init_weights():
            layer = adapted(
                module.in_features,
                module.out_features,
                rank=lora_rank,
                alpha=lora_alpha,
                dropout=lora_dropout,
                use_bias=module.bias is not None,
                quantize_base=quantize_base,
            )
        setattr(model.base_model.get_submodule(parent), last, layer)
    return _on_default_device(TransformersDecoder(model))


def _is_read_by_kernel(body: nn.Module, name: str) -> bool:
    """Whether a layer's parent reads its weight instead of calling it, as fused kernels of Mamba
    read ``out_proj``: they would ignore an adapter in training.
    """
    parent, _, last = name.rpartition(".")
    return f"self.{last}.weight" in _source(type(body.get_submodule(parent)))  # type: ignore[arg-type]


@cache
def _source(kind: Any) -> str:
    return inspect.getsource(kind)


def _on_default_device(decoder: TransformersDecoder) -> TransformersDecoder:
    """Move the decoder to torch's default device; parameters are uninitialized there."""
    device = torch.get_default_device()
    if device.type == "meta":
        return decoder
    return decoder._apply(
        lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device)
    )
