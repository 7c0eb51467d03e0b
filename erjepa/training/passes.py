"""One pass of a step, over its new or its replayed pairs: what it counts and what it gives."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from erjepa.objective import cosine_distance
from erjepa.training.distributed import all_reduce_sum, gather_interleaved


class StepTotals(NamedTuple):
    """Totals of one pass of a step, over all ranks and micro-batches."""

    labels: int
    pairs: int
    tokens: int
    flops: int


class PassResult(NamedTuple):
    """Outcome of one pass over B pairs, in batch order, equal on every rank.

    Args:
        example_ids (Tensor): int64 [B].
        loss (Tensor): weighted loss of the pass, scalar.
        lm (Tensor): cross-entropy summed over each pair's labels, [B].
        jepa (Tensor): :math:`d(p, z^a)` of each pair, [B], or [0] without views.
        source (Tensor): :math:`z^u`, [B, H] or [0, H].
        cosine_paired (Tensor): mean cosine of :math:`p_i` and :math:`z^a_i`, scalar.
        cosine_shuffled (Tensor): mean cosine of :math:`p_i` and :math:`z^a_{i+1}`, scalar.
    """

    example_ids: Tensor
    loss: Tensor
    lm: Tensor
    jepa: Tensor
    source: Tensor
    cosine_paired: Tensor
    cosine_shuffled: Tensor

    def non_finite_ids(self) -> Tensor:
        """Examples whose loss is not finite."""
        bad = ~torch.isfinite(self.lm)
        if len(self.jepa):
            bad |= ~torch.isfinite(self.jepa)
        return self.example_ids[bad]


class PassOutput(NamedTuple):
    """Outcome of one micro-batch of n pairs on one rank, without gradient.

    Args:
        order (Tensor): place of each pair among those of this rank in the pass, [n].
        example_ids (Tensor): int64 [n].
        loss (Tensor): its share of the pass's weighted loss, scalar.
        lm (Tensor): as in :class:`PassResult`, [n].
        views (Tensor): :math:`z^u`, :math:`p` and :math:`z^a`, [n, 3, H], or [0, 3, H].
    """

    order: Tensor
    example_ids: Tensor
    loss: Tensor
    lm: Tensor
    views: Tensor


def gather_pass(
    outputs: list[PassOutput],
    num_pairs: int,
    *,
    has_views: bool,
    distance: Callable[[Tensor, Tensor], Tensor],
) -> PassResult:
    """Put the pairs of a pass back into batch order, on every rank.

    Packing has put a rank's pairs into rows that share most; the pairs were dealt to the ranks
    in turn.

    Args:
        outputs (list[PassOutput]): of this rank's micro-batches, in order.
        num_pairs (int): B, over all ranks.
        has_views (bool): whether pairs have embeddings.
        distance (Callable[[Tensor, Tensor], Tensor]): :math:`d(p, z)` of the loss, [B, H] and
            [B, H] to [B].

    Returns:
        PassResult: the same on every rank.
    """
    in_order = torch.cat([output.order for output in outputs]).argsort()

    def gathered(parts: list[Tensor]) -> Tensor:
        return gather_interleaved(torch.cat(parts)[in_order], num_pairs)

    views = [output.views for output in outputs]
    all_views = gathered(views) if has_views else torch.cat(views)
    source, predicted, target = all_views.unbind(dim=1)
    return PassResult(
        example_ids=gathered([output.example_ids for output in outputs]),
        loss=all_reduce_sum(torch.stack([output.loss for output in outputs]).sum()),
        lm=gathered([output.lm for output in outputs]),
        jepa=distance(predicted, target),
        source=source,
        cosine_paired=1 - cosine_distance(predicted, target).mean(),
        cosine_shuffled=1 - cosine_distance(predicted, target.roll(1, 0)).mean(),
    )
