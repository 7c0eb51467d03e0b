"""The objective of LLM-JEPA on a set of pairs; ER-JEPA applies it to new and replayed pairs."""

from collections.abc import Callable
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
from erjepa.objective.sigreg import sigreg
from erjepa.objective.vicreg import covariance_term, variance_term
from erjepa.packing import Direction, PackedBatch


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
        direction (str): which side of a pair predicts the other: source_to_target,
            target_to_source, or both, of which the mean distance counts.
        jepa_every (int): the JEPA loss, with the terms below, is on the first of so many
            steps alone.
        sigreg_weight (float): of SIGReg, see :mod:`~erjepa.objective.sigreg`.
        sigreg_slices (int): its random directions.
        variance_weight (float): of VICReg's variance, see :mod:`~erjepa.objective.vicreg`.
        covariance_weight (float): of VICReg's covariance. These three are of the
            embeddings that the distance compares, each side apart, the mean of both.

    Raises:
        ValueError: if a weight is negative, both are zero, or another value makes no sense.
    """

    def __init__(
        self,
        lm_weight: float = 1.0,
        jepa_weight: float = 1.0,
        distance: Literal["cosine", "l2", "mse", "infonce"] = "cosine",
        temperature: float = 0.07,
        direction: Direction = "source_to_target",
        jepa_every: int = 1,
        sigreg_weight: float = 0.0,
        sigreg_slices: int = 256,
        variance_weight: float = 0.0,
        covariance_weight: float = 0.0,
    ) -> None:
        super().__init__()
        for name, weight in (
            ("lm_weight", lm_weight),
            ("jepa_weight", jepa_weight),
            ("sigreg_weight", sigreg_weight),
            ("variance_weight", variance_weight),
            ("covariance_weight", covariance_weight),
        ):
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
        for name, count in (
            ("jepa_every", jepa_every),
            ("sigreg_slices", sigreg_slices),
        ):
            if count < 1:
                raise ValueError(f"loss.{name} must be at least 1, got {count}")
        against_collapse = sigreg_weight + variance_weight + covariance_weight
        if against_collapse and not jepa_weight:
            raise ValueError(
                "loss.jepa_weight is 0, so there is no JEPA loss to keep from collapse; set "
                "it above 0, or loss.sigreg_weight, loss.variance_weight and "
                "loss.covariance_weight to 0"
            )
        self.jepa_weight = jepa_weight
        self.direction = direction
        self.jepa_every = jepa_every
        distances: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "cosine": cosine_distance,
            "l2": l2_distance,
            "mse": mse_distance,
            "infonce": partial(infonce_distance, temperature=temperature),
        }
        self._distance = distances[distance]
        self.is_contrastive = distance == "infonce"
        self._sigreg_weight = sigreg_weight
        self._sigreg_slices = sigreg_slices
        self._variance_weight = variance_weight
        self._covariance_weight = covariance_weight
        self._is_regularized = against_collapse > 0

    def distance(self, predicted: Tensor, target: Tensor) -> Tensor:
        """:math:`d(p, z)`: [..., n, H] and [..., n, H] to [..., n]."""
        return self._distance(predicted, target)

    def errors(self, predicted: Tensor, target: Tensor) -> Tensor:
        """The distance of each pair, of the loss and of the memory's scores.

        Args:
            predicted (Tensor): of each of m comparisons, [m, n, H].
            target (Tensor): what it is compared with, [m, n, H].

        Returns:
            Tensor: mean over the comparisons, [n].
        """
        return self.distance(predicted, target).mean(dim=0)

    @property
    def looks_at_all(self) -> bool:
        """Whether a term depends on all pairs of a set at once: :meth:`whole`."""
        return self._is_regularized or (self.is_contrastive and self.jepa_weight > 0)

    def whole(self, predicted: Tensor, target: Tensor, seed: int) -> Tensor:
        """What :meth:`forward`, which sees a part of the set, leaves out of the loss.

        Args:
            predicted (Tensor): :math:`p` of all pairs, [m, B, H].
            target (Tensor): what it is compared with, [m, B, H].
            seed (int): of what is drawn for this set.

        Returns:
            Tensor: weighted, scalar.
        """
        loss = predicted.new_zeros(())
        if self.is_contrastive:
            loss = loss + self.jepa_weight * self.errors(predicted, target).mean()
        sides = torch.cat([predicted, target])
        if self._sigreg_weight:
            spread = sigreg(sides, self._sigreg_slices, seed)
            loss = loss + self._sigreg_weight * spread.mean()
        if self._variance_weight:
            loss = loss + self._variance_weight * variance_term(sides).mean()
        if self._covariance_weight:
            loss = loss + self._covariance_weight * covariance_term(sides).mean()
        return loss

    def whole_flops(self, num_pairs: int, embed_dim: int) -> int:
        """Matrix products of :meth:`whole`, forward and backward; each side of one comparison."""
        flops = 6 * num_pairs**2 * embed_dim * self.is_contrastive
        if self._sigreg_weight:
            flops += 2 * 6 * num_pairs * embed_dim * self._sigreg_slices
        if self._covariance_weight:
            flops += 2 * 6 * num_pairs**2 * embed_dim
        comparisons = 2 if self.direction == "both" else 1
        return flops * comparisons if self.looks_at_all else 0

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
        loss = self.lm_weight * token_loss.sum() / num_labels
        is_left_out = self.is_contrastive and self.looks_at_all
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_left_out):
            jepa = self.errors(output.predicted, output.target)
        if not is_left_out:
            loss = loss + self.jepa_weight * jepa.sum() / num_pairs
        lm = torch.zeros(batch.num_pairs, device=token_loss.device).index_add(
            0, batch.label_pair, token_loss.detach()
        )
        return loss, PairLosses(lm, jepa.detach())
