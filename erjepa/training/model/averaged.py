"""A moving average of the weights over training."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from erjepa.training.model.sharding import gather, local_part, trained_by_name


class AveragedWeights:
    """Exponential moving average of the trainable weights.

    .. math::
        \\bar w_t = d_t \\bar w_{t-1} + (1 - d_t) w_t, \\qquad
        d_t = \\min\\Big(d, \\frac{1 + t}{10 + t}\\Big)

    after the t-th update of the weights, with :math:`\\bar w_0 = w_0`. The second term of the
    minimum lets a short average forget the initial weights, as in TensorFlow. A run that starts
    from weights with an average continues that average and its t, and so does not forget earlier
    runs: it is the slow learner of SuRe (arXiv:2511.22367). Averages are float32 and sharded like
    the weights. The matrices of an adapter are averaged, not their product.

    Args:
        decay: d, above 0 and below 1; ``None``: keep no average, and all calls do nothing.
        model: model with its weights, sharded or not.
        saved: what :meth:`state_dict` returned on rank 0, in this run or an earlier one. Averages
            that it lacks, or all if it is ``None``, start from the current weights.
    """

    def __init__(
        self,
        decay: float | None,
        model: nn.Module,
        device: torch.device,
        saved: Mapping[str, Any] | None,
    ) -> None:
        self._decay = decay
        self._device = device
        self._steps = 0
        self._weights = trained_by_name(model) if self.is_on else {}
        self._averages = {
            name: weight.detach().to(torch.float32, copy=True)
            for name, weight in self._weights.items()
        }
        if self.is_on and saved is not None:
            self._steps = saved["steps"]
            # In the order of the model, the same on every rank: distribute_tensor is a collective.
            for name, average in self._averages.items():
                if (full := saved["weights"].get(name)) is None:
                    continue
                if isinstance(average, DTensor):
                    mesh, placements = average.device_mesh, average.placements
                    full = distribute_tensor(full, mesh, placements)
                local_part(average).copy_(local_part(full))

    @property
    def is_on(self) -> bool:
        return self._decay is not None

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average; called after each optimizer step."""
        if self._decay is None:
            return
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        averages = [local_part(average) for average in self._averages.values()]
        weights = [local_part(weight).float() for weight in self._weights.values()]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def gather(self) -> dict[str, Tensor]:
        """Return the full averages by name in the model, float32, on the CPU of rank 0; empty on
        other ranks. Called on all ranks.
        """
        return gather(self._averages, self._device)

    def progress(self) -> dict[str, int]:
        """Return the number of averaged updates over all runs, for ``progress.json``."""
        return {"averaged_steps": self._steps} if self.is_on else {}

    def state_dict(self, gathered: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the state to resume from; ``gathered`` is from :meth:`gather` on rank 0."""
        return {"steps": self._steps, "weights": dict(gathered)}
