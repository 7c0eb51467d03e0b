"""Trainable weights in float32 over a frozen base in a lower precision.

In bfloat16 an update of 1e-5 is less than half a unit in the last place of every weight larger
than about 0.0026, so most entries of a LoRA matrix would never change at LoRA's usual learning
rates. Here adapters, their gradients and their optimizer states are float32, and the forward pass
casts adapters to the base's precision. FSDP2 does so when it gathers them
(:func:`~erjepa.training.model.sharding.shard`); on one rank without FSDP2,
:func:`set_trainable_dtype` makes the layers do so.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchtune.modules.peft import DoRALinear, LoRALinear
from torchtune.training import get_dtype

from erjepa.configs import Config


def dtypes_of(cfg: Config) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes of a run's computation and of its trainable weights."""
    # On a GPU without bfloat16 get_dtype fails; run_device reports that.
    cpu = torch.device("cpu")
    return get_dtype(cfg.dtype, cpu), get_dtype(cfg.trainable_dtype or cfg.dtype, cpu)


def set_trainable_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Store a model's adapters in ``dtype``; they compute in the dtype of their input."""
    for module in model.modules():
        if not isinstance(module, (LoRALinear, DoRALinear)):
            continue
        for linear in (module.lora_a, module.lora_b):
            linear.to(dtype)
            linear.__class__ = _CastLinear
        if isinstance(module, DoRALinear):
            module.magnitude = nn.Parameter(module.magnitude.to(dtype))


class _CastLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))
