r"""Measures the effect of replay on one update.

The paper's proposition compares two gradient-descent steps from the same weights, without and with
the replayed pairs, :math:`\omega_C = \omega - \eta g_B` and :math:`\omega_E = \omega_C -
\eta \beta g_R`:

.. math:: L_R(\omega_E) - L_R(\omega_C) = -\eta \beta \lVert g_R \rVert^2 + O(\eta^2).

Both sides are measured at the run's learning rate. The loss of the replayed pairs is also measured
before and after the actual update, which includes the optimizer and gradient clipping.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from erjepa.training.model.distributed import all_reduce_sum
from erjepa.training.model.sharding import free_gathered, local_part
from erjepa.training.step.passes import PassResult
from erjepa.training.step.random_state import random_state, set_random_state


class ReplayProbe:
    """Measures the effect of replay on one optimizer step.

    Construct it before the replayed pass, call :meth:`after_replay` after that pass, and
    :meth:`after_update` after the optimizer step. The replayed pairs run again from the random
    state of the replayed pass, for the same dropout. Weights and random state are restored.

    Args:
        model: trained model, sharded or not, holding the gradient of the new pairs, reduced over
            the ranks.
        replay_loss: runs the replayed pairs again, without gradient, and returns their loss.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, replay_loss: Callable[[], Tensor]
    ) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._model = model
        self._device = device
        self._replay_loss = replay_loss
        self._new = [_gradient(p).clone() for p in self._parameters]
        self._before_replay = random_state(device)
        self.metrics: dict[str, float] = {}

    def after_replay(self, replayed: PassResult, lr: float) -> None:
        r"""Compare the two gradients and the two updates, once the replayed gradient is added.

        Args:
            lr: learning rate :math:`\eta` of both updates.
        """
        weight = replayed.weight
        gradients = [
            (_gradient(p) - new) / weight
            for p, new in zip(self._parameters, self._new, strict=True)
        ]
        parts = []
        for new, replay in zip(self._new, gradients, strict=True):
            a, b = new.double(), replay.double()
            parts.append(torch.stack([(a * b).sum(), (a * a).sum(), (b * b).sum()]))
        products = torch.stack(parts).sum(dim=0).cpu()  # waits once for the device
        if isinstance(self._parameters[0], DTensor):
            products = all_reduce_sum(products)
        dot, new_norm, norm = products[0], *products[1:].sqrt()
        cosine = dot / (new_norm * norm)
        outside = norm * (1 - cosine.square()).clamp(min=0).sqrt()
        self.metrics |= {
            "gradient_cosine": cosine.item(),
            "replay_gradient_norm": norm.item(),
            "replay_gradient_outside": outside.item(),
            "replay_loss_before": replayed.loss.item(),
            "replay_benefit": self._benefit(gradients, lr, weight),
            "replay_benefit_expected": (-lr * weight * norm.square()).item(),
        }

    def after_update(self) -> None:
        """Measure the loss of the replayed pairs after the update."""
        self.metrics["replay_loss_after"] = self._loss()

    @torch.no_grad()
    def _benefit(self, gradients: list[Tensor], lr: float, weight: float) -> float:
        r"""Return :math:`L_R(\omega_E) - L_R(\omega_C)`."""
        weights = [local_part(p) for p in self._parameters]
        kept = [w.clone() for w in weights]
        torch._foreach_add_(weights, self._new, alpha=-lr)
        without = self._loss()
        torch._foreach_add_(weights, gradients, alpha=-lr * weight)
        benefit = self._loss() - without
        torch._foreach_copy_(weights, kept)
        return benefit

    @torch.no_grad()
    def _loss(self) -> float:
        current = random_state(self._device)
        set_random_state(self._before_replay, self._device)
        # Waits for the device: offloaded weights, which are about to change, are copied to it.
        loss = self._replay_loss().item()
        set_random_state(current, self._device)
        free_gathered(self._model)  # the next pass must gather the changed weights
        return loss


def _gradient(parameter: Tensor) -> Tensor:
    """Return this rank's shard of a gradient."""
    gradient = parameter.grad
    assert gradient is not None
    return local_part(gradient)
