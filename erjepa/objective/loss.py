"""The objective of LLM-JEPA on a set of pairs; ER-JEPA applies it to new and replayed pairs."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from erjepa.objective.decoder import PackedOutput
from erjepa.packing import PackedBatch


class PairLosses(NamedTuple):
    """Unweighted losses of each pair, without gradient, float32.

    Args:
        lm (Tensor): sum of the cross-entropy of the pair's labels, nats, [n].
        jepa (Tensor): :math:`d(p, z^a)`, between 0 and 2, [n], or [0] without views.
    """

    lm: Tensor
    jepa: Tensor


class JEPALoss(nn.Module):
    """Next-token loss and JEPA loss of one part of a set of pairs.

    .. math::
        \\frac{\\gamma}{Z} \\sum_i \\sum_{\\ell \\in T_i} \\mathrm{CE}_{i,\\ell}
        + \\frac{\\lambda}{B} \\sum_i d(p_i, z_i^a), \\qquad d(p, z) = 1 - \\cos(p, z)

    (Eq. 3 of the ER-JEPA paper). Z and B count the *whole* set, over all ranks and
    micro-batches, so the parts add up to the loss of the set however it is cut. Both
    branches of the cosine receive gradient.

    Args:
        lm_weight (float): :math:`\\gamma`.
        jepa_weight (float): :math:`\\lambda`.

    Raises:
        ValueError: if a weight is negative or both are zero.
    """

    def __init__(self, lm_weight: float = 1.0, jepa_weight: float = 1.0) -> None:
        super().__init__()
        for name, weight in (("lm_weight", lm_weight), ("jepa_weight", jepa_weight)):
            if not 0 <= weight < float("inf"):
                raise ValueError(
                    f"loss.{name} must be finite and at least 0, got {weight}"
                )
        if lm_weight == jepa_weight == 0:
            raise ValueError("loss.lm_weight and loss.jepa_weight are both 0")
        self.lm_weight = lm_weight
        self.jepa_weight = jepa_weight

    def distance(self, predicted: Tensor, target: Tensor) -> Tensor:
        """:math:`d(p, z)`, of the loss and of the memory's scores: [n, H], [n, H] to [n]."""
        return cosine_distance(predicted, target)

    def forward(
        self,
        output: PackedOutput,
        batch: PackedBatch,
        num_labels: int | Tensor,
        num_pairs: int | Tensor,
    ) -> tuple[Tensor, PairLosses]:
        """Weighted loss of the batch as its share of the whole set.

        Args:
            output (PackedOutput): of the n pairs in ``batch``.
            batch (PackedBatch): the same pairs.
            num_labels (int | Tensor): Z.
            num_pairs (int | Tensor): B.

        Returns:
            tuple[Tensor, PairLosses]: scalar share of the loss, and each pair's losses.
        """
        log_probabilities = output.logits.float().log_softmax(dim=-1)
        token_loss = -log_probabilities[batch.label_logit, batch.labels]
        jepa = self.distance(output.predicted, output.target)
        loss = (
            self.lm_weight * token_loss.sum() / num_labels
            + self.jepa_weight * jepa.sum() / num_pairs
        )
        lm = torch.zeros(batch.num_pairs, device=token_loss.device).index_add(
            0, batch.label_pair, token_loss.detach()
        )
        return loss, PairLosses(lm, jepa.detach())


def cosine_distance(predicted: Tensor, target: Tensor) -> Tensor:
    """:math:`d(p, z) = 1 - \\cos(p, z)` in float32, [n, H] and [n, H] to [n]."""
    return 1 - F.cosine_similarity(predicted.float(), target.float(), dim=-1)
