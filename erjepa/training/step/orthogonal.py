r"""The penalty of O-LoRA (Wang et al., 2023) on new adapters over merged ones.

A layer's update is :math:`B A`, so it acts on inputs in the span of the rows of A. The penalty keeps
these rows orthogonal to those of the adapters that ``base_adapters`` merges. As in O-LoRA's code, it
is a sum of absolute values:

.. math:: \sum_{\text{layers}} \sum_t \sum_{i,j} \big| (A A_t^\top)_{ij} \big|
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from erjepa.training.model.distributed import all_reduce_sum
from erjepa.training.model.sharding import local_part, trained_by_name


class OrthogonalPenalty:
    """Adds the gradient of the weighted penalty to that of a step.

    Args:
        weight: ``orthogonal_weight``; 0 turns the penalty off.
        decoder: model whose adapters are trained, sharded or not.
        merged: weights of each adapter in the base, by name in the decoder.
    """

    def __init__(
        self, weight: float, decoder: nn.Module, merged: Iterable[Mapping[str, Tensor]]
    ) -> None:
        self._weight = weight
        # A of the trained adapter, [r, in], and the rows of all merged ones, [sum of ranks, in].
        self._layers: list[tuple[nn.Parameter, Tensor]] = []
        adapters = list(merged) if weight else []
        for name, a in trained_by_name(decoder).items():
            if adapters and name.endswith("lora_a.weight"):
                rows = torch.cat([adapter[name] for adapter in adapters])
                self._layers.append((a, rows.to(local_part(a))))

    @torch.no_grad()
    def add_gradient(self) -> dict[str, Tensor]:
        """Add the gradient, once per step, and return the metric ``orthogonal_loss``, the unweighted
        penalty, the same on every rank.
        """
        if not self._layers:
            return {}
        penalties = []
        for a, rows in self._layers:
            products = local_part(a) @ rows.T  # FSDP2 shards the rows of A
            penalties.append(products.abs().sum())
            if a.grad is not None:
                gradient = products.sign() @ rows
                local_part(a.grad).add_(gradient, alpha=self._weight)
        return {"orthogonal_loss": all_reduce_sum(torch.stack(penalties).sum())}
