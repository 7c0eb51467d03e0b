"""Adapter weights of a sharded model, the same for any number of ranks."""

import math

import torch
from torch import Tensor, nn
from torchtune.modules.peft import DoRALinear, LoRALinear


def initial_adapter_state(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """LoRA's initialization (A Kaiming-uniform, B zero) drawn from a generator of its own.

    torchtune initializes the shards of each rank from that rank's random state, so the
    adapter a run starts from depends on the number of ranks. These are full tensors.

    Args:
        model (nn.Module): the model, on any device, sharded or not.
        seed (int): seed of the run.

    Returns:
        dict[str, Tensor]: CPU tensors by their name in ``model.state_dict()``.
    """
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, module in model.named_modules():
        if not isinstance(module, (LoRALinear, DoRALinear)):
            continue
        name = name.replace("_checkpoint_wrapped_module.", "")
        a, b = (
            torch.zeros(linear.weight.shape, dtype=linear.weight.dtype)
            for linear in (module.lora_a, module.lora_b)
        )
        nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
        state[f"{name}.lora_a.weight"] = a
        state[f"{name}.lora_b.weight"] = b
        if hasattr(module, "magnitude"):
            # DoRA sets it from the base weights once these are loaded.
            state[f"{name}.magnitude"] = torch.zeros(
                module.magnitude.shape, dtype=module.magnitude.dtype
            )
    return state
