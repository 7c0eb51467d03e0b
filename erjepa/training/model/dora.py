"""DoRA (Liu et al., 2024) as PEFT computes it: the magnitude scales the weight, not the bias."""

from torch import Tensor, nn
from torchtune.modules.peft import DoRALinear


def correct_dora(model: nn.Module) -> None:
    """Make a model's DoRA layers add the bias after scaling, as merged weights do.

    torchtune's layers scale the bias as well. These also cast the magnitude to the input's dtype.
    """
    for module in model.modules():
        if isinstance(module, DoRALinear):
            module.__class__ = _DoRALinear
            module.use_bias = False  # for the quantized base, which adds it itself


# Not hooks: torch.compile would compile every layer anew, since a hook has a number of its own.
class _DoRALinear(DoRALinear):
    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias
        # Instance attributes hide the parameters of the same names.
        self.__dict__.update(magnitude=self.magnitude.to(x.dtype), bias=None)
        try:
            scaled = super().forward(x)
        finally:
            del self.__dict__["magnitude"], self.__dict__["bias"]
        return scaled if bias is None else scaled + bias
