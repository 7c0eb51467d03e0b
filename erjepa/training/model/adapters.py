"""Initialization of adapters, and merging them into the base."""

import math

import torch
from torch import Tensor, nn
from torchtune.modules.peft import DoRALinear, get_merged_lora_ckpt

from erjepa.training.model.adapter_layers import ADAPTER_LAYERS


def initial_adapter_state(model: nn.Module, seed: int) -> dict[str, Tensor]:
    """Return LoRA's initialization (A Kaiming-uniform, B zero) by name in ``model.state_dict()``.

    torchtune initializes the shards of each rank from that rank's random state, so the initial
    adapter depends on the number of ranks. These are full tensors on the CPU, drawn in float32 from
    a separate generator.
    """
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, module in model.named_modules():
        if not isinstance(module, ADAPTER_LAYERS):
            continue
        a = torch.zeros(module.lora_a.weight.shape)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
        b = torch.zeros_like(module.lora_b.weight, device="cpu")
        state[f"{name}.lora_a.weight"] = a.to(module.lora_a.weight.dtype)
        state[f"{name}.lora_b.weight"] = b
        if isinstance(module, DoRALinear):
            # Computed from the base weights once these are loaded.
            magnitude = torch.zeros_like(module.magnitude, device="cpu")
            state[f"{name}.magnitude"] = magnitude
    return state


def merge_adapters(
    weights: dict[str, Tensor], device: torch.device, *, rank: int, alpha: float
) -> dict[str, Tensor]:
    """Replace the base's weights and adapters by merged weights in the dict, and return it.

    Tensors are not changed: on a single CPU rank they may be the live weights. They stay on the
    CPU in their dtype, but each layer is merged on ``device``: launchers limit a rank to one CPU
    thread. Results on CUDA may differ from those on a CPU in the last bit.
    """
    adapted = [
        name.removesuffix(".lora_a.weight")
        for name in weights
        if name.endswith(".lora_a.weight")
    ]
    for layer in adapted:
        parts = ("weight", "lora_a.weight", "lora_b.weight", "magnitude")
        names = [f"{layer}.{part}" for part in parts if f"{layer}.{part}" in weights]
        base = weights[f"{layer}.weight"]
        layer_weights = {name: weights[name].to(device, copy=True) for name in names}
        merged = get_merged_lora_ckpt(layer_weights, rank=rank, alpha=alpha)
        # DoRA's merged weights have the adapters' dtype.
        weights[f"{layer}.weight"] = merged[f"{layer}.weight"].to("cpu", base.dtype)
        for name in names[1:]:
            del weights[name]
    return weights
