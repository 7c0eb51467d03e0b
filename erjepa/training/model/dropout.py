"""Faster dropout for CPUs, where torch's takes an eighth of a LoRA step.

torch draws a random number for each entry; 16 random bits are enough.
"""

import torch
from torch import Tensor, nn
from torchtune.modules.peft import DoRALinear, LoRALinear

_DRAWS = 2**16


class QuickDropout(nn.Module):
    """Dropout that draws 16 random bits per entry, so ``p`` is rounded to a multiple of 2^-16."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = round(p * _DRAWS) / _DRAWS

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
        draws = bits.random_(-(2**63), None).view(torch.int16)[: x.numel()]
        dropped = round(self.p * _DRAWS) - _DRAWS // 2
        noise = torch.empty_like(x)
        torch.ge(draws.view(x.shape), dropped, out=noise)
        return x * noise.div_(1 - self.p)


def quicken_dropout(model: nn.Module) -> None:
    """Replace torch's dropout in the adapters of ``model`` by :class:`QuickDropout`."""
    for module in model.modules():
        if isinstance(module, (LoRALinear, DoRALinear)) and isinstance(
            module.dropout, nn.Dropout
        ):
            module.dropout = QuickDropout(module.dropout.p)
