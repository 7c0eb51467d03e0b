"""What one update owes to its replayed pairs, measured.

The paper's proposition on a single update compares the gradients of the new and of the replayed
loss, :math:`g_B` and :math:`g_R`, and the loss of the replayed pairs before and after the step.
These are the same quantities for the update that a run makes, optimizer and clipping included.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from erjepa.training.model.distributed import all_reduce_sum
from erjepa.training.model.sharding import local_part
from erjepa.training.step.passes import PassResult
from erjepa.training.step.random_state import random_state, set_random_state


class ReplayProbe:
    """Measures one optimizer step, in three calls around its replayed pass.

    The replayed pairs are run once more after the update, with the dropout masks of the
    replayed pass. That ends at its random state, so a run goes on as without a probe.

    Args:
        model: the trained model, sharded or not, with the gradient of the new
            pairs reduced over the ranks.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._device = device
        self._new = [_gradient(p).clone() for p in self._parameters]
        self._before_replay = random_state(device)
        self.metrics: dict[str, float] = {}

    def after_replay(self, loss: Tensor, weight: float) -> None:
        """Compare the gradients, once that of the replayed pairs has been added.

        Args:
            loss: of the replayed pairs, scalar.
            weight: :math:`\\beta`, with which it was added.
        """
        products = torch.zeros(3, dtype=torch.float64)
        for parameter, new in zip(self._parameters, self._new, strict=True):
            new = new.double()
            replayed = (_gradient(parameter).double() - new) / weight
            for i, (a, b) in enumerate(
                [(new, replayed), (new, new), (replayed, replayed)]
            ):
                products[i] += (a * b).sum().cpu()
        if isinstance(self._parameters[0], DTensor):
            products = all_reduce_sum(products)
        dot, new_norm, replay_norm = products[0], *products[1:].sqrt()
        self.metrics["gradient_cosine"] = (dot / (new_norm * replay_norm)).item()
        self.metrics["replay_gradient_norm"] = replay_norm.item()
        self.metrics["replay_loss_before"] = loss.item()

    def after_update(self, replay: Callable[[], PassResult]) -> None:
        """Measure what the update did to the replayed pairs.

        Args:
            replay: runs them again.
        """
        set_random_state(self._before_replay, self._device)
        with torch.no_grad():
            self.metrics["replay_loss_after"] = replay().loss.item()


def _gradient(parameter: Tensor) -> Tensor:
    """This rank's part of a gradient."""
    gradient = parameter.grad
    assert gradient is not None
    return local_part(gradient)
