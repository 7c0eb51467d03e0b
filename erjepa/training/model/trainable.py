"""The trainable weights of a run: the adapters of a model or, where it has none, every weight."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchtune import training
from torchtune.modules import TransformerDecoder
from torchtune.modules.peft import (
    get_adapter_params,
    get_adapter_state_dict,
    set_trainable_params,
)

from erjepa.configs import Component
from erjepa.training.model.adapter_layers import correct_dora, set_trainable_dtype
from erjepa.training.model.adapters import merge_adapters


class TrainableWeights:
    """The trainable weights of a model: its adapters over a frozen base, or every weight.

    Creating it sets which weights of the model require gradients, and their dtype. Without
    adapters, weights are exported in ``dtype``, that of the base and of inference; the recipe state
    holds them in ``trainable_dtype``.

    Args:
        decoder: model on the meta device.
        builder: the model's, which takes ``lora_rank`` and ``lora_alpha`` if it adds adapters.

    Attributes:
        has_adapters: whether they are adapters, of LoRA, DoRA or QLoRA.
    """

    def __init__(
        self,
        decoder: TransformerDecoder,
        builder: Component,
        *,
        trainable_dtype: torch.dtype,
        dtype: torch.dtype,
    ) -> None:
        self.has_adapters = bool(get_adapter_params(decoder))
        if not self.has_adapters:
            # Not RoPE's frequencies, which are buffers.
            for weight in decoder.parameters():
                weight.data = weight.data.to(trainable_dtype)
        elif trainable_dtype != dtype:
            set_trainable_dtype(decoder, trainable_dtype)
        correct_dora(decoder)
        trained = get_adapter_params(decoder) or dict(decoder.named_parameters())
        set_trainable_params(decoder, trained)
        self._builder = builder
        self._dtype = dtype

    def summary(self, base_adapters: Sequence[str]) -> dict[str, Any]:
        """Return what adapters were trained with, for ``progress.json``: a checkpoint may be moved
        away from the config of its run.
        """
        if not self.has_adapters:
            return {}
        alpha = self._builder.get("lora_alpha")
        return {"lora_alpha": alpha, "base_adapters": list(base_adapters)}

    def export(
        self, weights: dict[str, Tensor], device: torch.device, *, adapter_only: bool
    ) -> dict[str, Any]:
        """Return what a torchtune checkpointer saves; adapters are merged in ``weights``."""
        if not self.has_adapters:
            rounded = {name: w.to(self._dtype) for name, w in weights.items()}
            return {training.MODEL_KEY: rounded}
        builder = self._builder
        rank, alpha = builder.get("lora_rank"), builder.get("lora_alpha")
        adapter = get_adapter_state_dict(weights)
        content: dict[str, Any] = {
            training.ADAPTER_KEY: adapter,
            training.ADAPTER_CONFIG: {
                "r": rank,
                "lora_alpha": alpha,
                "target_modules": sorted(
                    {_layer_of(name) for name in adapter if "lora_a" in name}
                ),
                "lora_dropout": builder.get("lora_dropout") or 0.0,
                "use_dora": builder.get("use_dora") or False,
                "revision": builder.get("revision"),
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "inference_mode": True,
            },
        }
        if not adapter_only:
            merged = merge_adapters(weights, device, rank=rank, alpha=alpha)
            content[training.MODEL_KEY] = merged
        return content


def _layer_of(weight: str) -> str:
    """Return the last name of a weight's layer, by which PEFT finds it, with that of its list for one
    in a list: ``0`` alone would also be the model's first layer.
    """
    *layer, _, _ = weight.split(".")
    return ".".join(layer[-2:]) if layer[-1].isdigit() else layer[-1]
