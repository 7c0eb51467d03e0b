"""The objective of LLM-JEPA on a set of pairs; ER-JEPA applies it to new and replayed pairs."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from erjepa.objective.decoder import PackedOutput
from erjepa.objective.distances import (
    cosine_distance,
    infonce_distance,
    l2_distance,
    mse_distance,
)
from erjepa.objective.terms import Covariance, LossTerm, SIGReg, Variance
from erjepa.packing import Direction, PackedBatch

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class JEPALoss(nn.Module):
    """Next-token loss and JEPA loss of a part of a set of pairs.

    .. math::
        \\frac{\\gamma}{Z} \\sum_i \\sum_{\\ell \\in T_i} \\mathrm{CE}_{i,\\ell}
        + \\frac{\\lambda}{B} \\sum_i d(p_i, z_i^a)

    (Eq. 3 of the ER-JEPA paper, where d is the cosine distance). Z and B count the labels and pairs
    of the *whole* set, over all ranks and micro-batches, so the losses of its parts add up to the
    loss of the set, however it is split. Both branches of the distance receive gradient.

    Args:
        lm_weight: :math:`\\gamma`.
        jepa_weight: :math:`\\lambda`.
        distance: d, see :mod:`~erjepa.objective.distances`. InfoNCE contrasts a pair with all
            others of the set, see :attr:`needs_whole_batch`.
        temperature: :math:`\\tau` of InfoNCE.
        direction: which side of a pair predicts the other; ``both`` uses the mean distance.
        jepa_every: compute the JEPA loss and the terms only at the first of every so many steps.
        sigreg_weight: of the term :class:`~erjepa.objective.terms.SIGReg`.
        sigreg_slices: its number of random directions.
        variance_weight, covariance_weight: of the terms :class:`~erjepa.objective.terms.Variance`
            and :class:`~erjepa.objective.terms.Covariance`.

    Raises:
        ValueError: if both weights are zero, or a term is enabled without the JEPA loss.
    """

    def __init__(
        self,
        lm_weight: float = 1.0,
        jepa_weight: float = 1.0,
        distance: Literal["cosine", "l2", "mse", "infonce"] = "cosine",
        temperature: float = 0.07,
        direction: Direction = "source_to_target",
        jepa_every: int = 1,
        sigreg_weight: Weight = 0.0,
        sigreg_slices: Annotated[int, Field(ge=1, lt=100_000)] = 256,
        variance_weight: Weight = 0.0,
        covariance_weight: Weight = 0.0,
    ) -> None:
        super().__init__()
        if lm_weight == jepa_weight == 0:
            raise ValueError("loss.lm_weight and loss.jepa_weight are both 0")
        terms: list[LossTerm] = [
            SIGReg(sigreg_weight, sigreg_slices),
            Variance(variance_weight),
            Covariance(covariance_weight),
        ]
        self._terms = [term for term in terms if term.weight]
        if self._terms and not jepa_weight:
            keys = ", ".join(f"loss.{term.name}_weight" for term in self._terms)
            raise ValueError(
                "loss.jepa_weight is 0, so there is no JEPA loss to keep from collapse; set "
                f"it above 0, or {keys} to 0"
            )
        self.lm_weight = lm_weight
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
        self._is_contrastive = distance == "infonce" and jepa_weight > 0

    def distance(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return :math:`d(p, z)`: [..., n, H] and [..., n, H] -> [..., n]."""
        return self._distance(predicted, target)

    def errors(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return each pair's mean distance over m comparisons, used in the loss and as score in the
        memory: [m, n, H] and [m, n, H] -> [n].
        """
        return self.distance(predicted, target).mean(dim=0)

    @property
    def reads_embeddings(self) -> bool:
        """Whether the loss depends on embeddings; without, pairs are laid out without views."""
        return self.jepa_weight > 0

    @property
    def needs_whole_batch(self) -> bool:
        """Whether a part of the loss depends on all pairs of a set at once, see :meth:`whole`."""
        return bool(self._terms) or self._is_contrastive

    def whole(
        self, predicted: Tensor, target: Tensor, seed: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted part of the loss that needs all pairs of a set, which :meth:`forward`
        leaves out, and the unweighted terms in it by the names of their metrics.

        Args:
            predicted: :math:`p` of all pairs, [m, B, H].
            target: what :math:`p` is compared with, [m, B, H].
            seed: of the random draws for this set.
        """
        loss = predicted.new_zeros(())
        if self._is_contrastive:
            loss = loss + self.jepa_weight * self.errors(predicted, target).mean()
        sides, values = torch.cat([predicted, target]), {}
        for term in self._terms:
            value = values[f"{term.name}_loss"] = term.value(sides, seed).mean()
            loss = loss + term.weight * value
        return loss, values

    def whole_flops(self, num_pairs: int, embed_dim: int) -> int:
        """Return the operations of matrix products in :meth:`whole`, forward and backward."""
        flops = 6 * num_pairs**2 * embed_dim * self._is_contrastive
        flops += sum(2 * term.flops(num_pairs, embed_dim) for term in self._terms)
        return flops * (2 if self.direction == "both" else 1)

    def forward(
        self,
        output: PackedOutput,
        batch: PackedBatch,
        num_labels: int | Tensor,
        num_pairs: int | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the batch's part of the weighted loss of the set, without :meth:`whole`, and for
        each of its n pairs the cross-entropy summed over its labels, nats, float32 [n], without
        gradient. ``num_labels`` and ``num_pairs`` are Z and B.
        """
        log_probabilities = output.logits.float().log_softmax(dim=-1)
        token_loss = -log_probabilities[batch.label_logit, batch.labels]
        loss = self.lm_weight * token_loss.sum() / num_labels
        # Without views nothing else would use the embeddings, and all that is computed must be used.
        if not (self._is_contrastive and batch.num_views):
            errors = self.errors(output.predicted, output.target)
            loss = loss + self.jepa_weight * errors.sum() / num_pairs
        lm_of_pairs = torch.zeros(batch.num_pairs, device=token_loss.device).index_add(
            0, batch.label_pair, token_loss.detach()
        )
        return loss, lm_of_pairs
