"""Trainable weights in float32 over a frozen base in a lower precision.

In bfloat16 an update of 1e-5 is less than half a unit in the last place of every weight larger
than about 0.0026, so most entries of a LoRA matrix would never change at LoRA's usual learning
rates. Here adapters, their gradients and their optimizer states are float32, and the forward pass
casts adapters to the base's precision. FSDP2 does so when it gathers them
(:func:`~erjepa.training.model.sharding.shard`); on one rank without FSDP2,
:func:`~erjepa.training.model.adapter_layers.set_trainable_dtype` makes the layers do so.
"""

import torch
from torchtune.training import get_dtype

from erjepa.configs import Config


def dtypes_of(cfg: Config) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes of a run's computation and of its trainable weights."""
    # On a GPU without bfloat16 get_dtype fails; run_device reports that.
    cpu = torch.device("cpu")
    return get_dtype(cfg.dtype, cpu), get_dtype(cfg.trainable_dtype or cfg.dtype, cpu)
