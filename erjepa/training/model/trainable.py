"""The trainable weights of a run: the adapters of a model or, where it has none, every weight.

Both classes have the same interface: names of the trainable weights, their initial values, and what
a checkpoint exports.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchtune import training
from torchtune.modules import TransformerDecoder
from torchtune.modules.peft import (
    get_adapter_params,
    get_adapter_state_dict,
    get_lora_module_names,
    set_trainable_params,
)

from erjepa.training.model.adapters import initial_adapter_state, merge_adapters
from erjepa.training.model.precision import set_trainable_dtype


class TrainableAdapters:
    """The adapters of LoRA, DoRA or QLoRA, over a frozen base."""

    has_adapters = True

    def __init__(
        self,
        decoder: TransformerDecoder,
        model_cfg: Mapping[str, Any],
        *,
        trainable_dtype: torch.dtype,
        dtype: torch.dtype,
    ) -> None:
        if trainable_dtype != dtype:
            set_trainable_dtype(decoder, trainable_dtype)
        adapters = get_adapter_params(decoder)
        set_trainable_params(decoder, adapters)
        self._cfg = model_cfg
        self.names = set(adapters)

    def initial_state(
        self, decoder: TransformerDecoder, base: dict[str, Tensor], seed: int
    ) -> dict[str, Tensor]:
        """Return the full initial weights by name; the base's tensors are not copied."""
        return {**base, **initial_adapter_state(decoder, seed)}

    def export(
        self, weights: dict[str, Tensor], device: torch.device, *, adapter_only: bool
    ) -> dict:
        """Return what a torchtune checkpointer saves; ``weights`` are merged in place."""
        content = {
            training.ADAPTER_KEY: get_adapter_state_dict(weights),
            training.ADAPTER_CONFIG: {
                "r": self._cfg["lora_rank"],
                "lora_alpha": self._cfg["lora_alpha"],
                "target_modules": self._target_modules(),
                "lora_dropout": self._cfg.get("lora_dropout", 0.0),
                "use_dora": self._cfg.get("use_dora", False),
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "inference_mode": True,
            },
        }
        if not adapter_only:
            content[training.MODEL_KEY] = merge_adapters(
                weights,
                device,
                rank=self._cfg["lora_rank"],
                alpha=self._cfg["lora_alpha"],
            )
        return content

    def _target_modules(self) -> list[str]:
        if (
            "lora_attn_modules" not in self._cfg
        ):  # a builder that takes other names of layers
            return sorted(
                {name.split(".")[-3] for name in self.names if "lora_a" in name}
            )
        return get_lora_module_names(
            list(self._cfg["lora_attn_modules"]),
            self._cfg.get("apply_lora_to_mlp", False),
            self._cfg.get("apply_lora_to_output", False),
        )


class AllWeights:
    """Every weight of a model without adapters.

    Weights are stored in ``trainable_dtype`` and exported in ``dtype``, that of the base and of
    inference. The recipe state holds them in ``trainable_dtype``.
    """

    has_adapters = False

    def __init__(
        self,
        decoder: TransformerDecoder,
        *,
        trainable_dtype: torch.dtype,
        dtype: torch.dtype,
    ) -> None:
        decoder.to(trainable_dtype)
        self._dtype = dtype
        self.names = {name for name, _ in decoder.named_parameters()}

    def initial_state(
        self, decoder: TransformerDecoder, base: dict[str, Tensor], seed: int
    ) -> dict[str, Tensor]:
        return dict(base)

    def export(
        self, weights: dict[str, Tensor], device: torch.device, *, adapter_only: bool
    ) -> dict:
        """Return what a torchtune checkpointer saves."""
        rounded = {name: weight.to(self._dtype) for name, weight in weights.items()}
        return {training.MODEL_KEY: rounded}


TrainableWeights = TrainableAdapters | AllWeights


def set_trainable(
    decoder: TransformerDecoder,
    model_cfg: Mapping[str, Any],
    *,
    trainable_dtype: torch.dtype,
    dtype: torch.dtype,
) -> TrainableWeights:
    """Set the trainable weights of a model on the meta device: its adapters, if any, else all.

    Args:
        model_cfg: arguments of the model's builder.
        trainable_dtype: dtype of the trainable weights.
        dtype: dtype of the computation.
    """
    precision = {"trainable_dtype": trainable_dtype, "dtype": dtype}
    if get_adapter_params(decoder):
        return TrainableAdapters(decoder, model_cfg, **precision)
    return AllWeights(decoder, **precision)
