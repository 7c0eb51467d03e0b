"""Changes to torchtune's adapter layers: their dtype, their dropout, and DoRA's bias."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchtune.modules.peft import DoRALinear, LoRALinear

from erjepa.training.model.sharding import local_part

ADAPTER_LAYERS = (LoRALinear, DoRALinear)
_DRAWS = 2**16


def set_trainable_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Store a model's adapters in ``dtype``; they compute in the dtype of their input."""
    for module in model.modules():
        if not isinstance(module, ADAPTER_LAYERS):
            continue
        for linear in (module.lora_a, module.lora_b):
            linear.to(dtype)
            linear.__class__ = _CastLinear
        if isinstance(module, DoRALinear):
            module.magnitude = nn.Parameter(module.magnitude.to(dtype))


class _CastLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def correct_dora(model: nn.Module) -> None:
    """Make a model's DoRA layers add the bias after scaling, as PEFT and merged weights do.

    torchtune's layers scale the bias as well. These also cast the magnitude to the input's dtype,
    and initialize it from sharded weights in NF4.
    """
    for module in model.modules():
        if isinstance(module, DoRALinear):
            module.__class__ = _DoRALinear
            module.use_bias = False  # for the quantized base, which adds it itself


# Not hooks: torch.compile would compile every layer anew, since a hook has a number of its own.
class _DoRALinear(DoRALinear):
    @torch.no_grad()
    def initialize_dora_magnitude(self) -> None:
        """Set the magnitude to the norms of the weight's rows; LoRA's B is zero."""
        # Of this rank's rows: a DTensor does not dequantize NF4 to the dtype that it has.
        magnitude, weight = local_part(self.magnitude), local_part(self.weight)
        magnitude.copy_(torch.linalg.norm(weight.to(magnitude.dtype), dim=1))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias
        # Instance attributes hide the parameters of the same names.
        self.__dict__.update(magnitude=self.magnitude.to(x.dtype), bias=None)
        try:
            scaled = super().forward(x)
        finally:
            del self.__dict__["magnitude"], self.__dict__["bias"]
        return scaled if bias is None else scaled + bias


def quicken_dropout(model: nn.Module) -> None:
    """Replace torch's dropout in the adapters of ``model``, an eighth of a LoRA step on a CPU."""
    for module in model.modules():
        if isinstance(module, ADAPTER_LAYERS) and isinstance(
            module.dropout, nn.Dropout
        ):
            module.dropout = QuickDropout(module.dropout.p)


class QuickDropout(nn.Module):
    """Dropout that draws 16 random bits per entry, so ``p`` is rounded to a multiple of 2^-16.

    torch draws a random number for each entry.
    """

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
