"""The objective of LLM-JEPA on a set of pairs; ER-JEPA applies it to new and replayed pairs."""

from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from erjepa.objective.decoder import PackedOutput
from erjepa.objective.distances import (
    cosine_distance,
    infonce_distance,
    l2_distance,
    mse_distance,
)
from erjepa.packing import PackedBatch


class PairLosses(NamedTuple):
    """Unweighted losses of each pair, without gradient, float32.

    Args:
        lm (Tensor): sum of the cross-entropy of the pair's labels, nats, [n].
        jepa (Tensor): :math:`d(p, z^a)`, [n], or [0] without views; with InfoNCE among the
            n pairs alone.
    """

    lm: Tensor
    jepa: Tensor


class JEPALoss(nn.Module):
    """Next-token loss and JEPA loss of one part of a set of pairs.

    .. math::
        \\frac{\\gamma}{Z} \\sum_i \\sum_{\\ell \\in T_i} \\mathrm{CE}_{i,\\ell}
        + \\frac{\\lambda}{B} \\sum_i d(p_i, z_i^a)

    (Eq. 3 of the ER-JEPA paper, where d is the cosine distance). Z and B count the *whole*
    set, over all ranks and micro-batches, so the parts add up to the loss of the set however
    it is cut. Both branches of the distance receive gradient.

    Args:
        lm_weight (float): :math:`\\gamma`.
        jepa_weight (float): :math:`\\lambda`.
        distance (str): d: cosine, l2, mse or infonce, see
            :mod:`~erjepa.objective.distances`. InfoNCE contrasts a pair with all others of the
            set, see :attr:`looks_at_all`.
        temperature (float): :math:`\\tau` of InfoNCE.

    Raises:
        ValueError: if a weight is negative, both are zero, or another value makes no sense.
    """

    def __init__(
        self,
        lm_weight: float = 1.0,
        jepa_weight: float = 1.0,
        distance: Literal["cosine", "l2", "mse", "infonce"] = "cosine",
        temperature: float = 0.07,
    ) -> None:
        super().__init__()
        for name, weight in (("lm_weight", lm_weight), ("jepa_weight", jepa_weight)):
            if not 0 <= weight < float("inf"):
                raise ValueError(
                    f"loss.{name} must be finite and at least 0, got {weight}"
                )
        if not 0 < temperature < float("inf"):
            raise ValueError(
                f"loss.temperature must be finite and above 0, got {temperature}"
            )
        if lm_weight == jepa_weight == 0:
            raise ValueError("loss.lm_weight and loss.jepa_weight are both 0")
        self.lm_weight = lm_weight
        self.jepa_weight = jepa_weight
        self._distance = {
            "cosine": cosine_distance,
            "l2": l2_distance,
            "mse": mse_distance,
            "infonce": partial(infonce_distance, temperature=temperature),
        }[distance]
        self.is_contrastive = distance == "infonce"

    def distance(self, predicted: Tensor, target: Tensor) -> Tensor:
        """:math:`d(p, z)`, of the loss and of the memory's scores: [n, H], [n, H] to [n]."""
        return self._distance(predicted, target)

    @property
    def looks_at_all(self) -> bool:
        """Whether a term depends on all pairs of a set at once: :meth:`whole`."""
        return self.is_contrastive and self.jepa_weight > 0

    def whole(self, predicted: Tensor, target: Tensor) -> Tensor:
        """What :meth:`forward`, which sees a part of the set, leaves out of the loss.

        Args:
            predicted (Tensor): :math:`p` of all pairs, [B, H].
            target (Tensor): :math:`z^a` of all pairs, [B, H].

        Returns:
            Tensor: weighted, scalar.
        """
        return self.jepa_weight * self.distance(predicted, target).mean()

    def whole_flops(self, num_pairs: int, embed_dim: int) -> int:
        """Operations of :meth:`whole`, forward and backward."""
        return 6 * num_pairs**2 * embed_dim if self.looks_at_all else 0

    def forward(
        self,
        output: PackedOutput,
        batch: PackedBatch,
        num_labels: int | Tensor,
        num_pairs: int | Tensor,
    ) -> tuple[Tensor, PairLosses]:
        """Weighted loss of the batch as its share of the whole set, :meth:`whole` left out.

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
        loss = self.lm_weight * token_loss.sum() / num_labels
        if not self.looks_at_all:
            loss = loss + self.jepa_weight * jepa.sum() / num_pairs
        lm = torch.zeros(batch.num_pairs, device=token_loss.device).index_add(
            0, batch.label_pair, token_loss.detach()
        )
        return loss, PairLosses(lm, jepa.detach())
