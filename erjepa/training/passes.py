"""One pass of a step, over its new or its replayed pairs: what it counts and what it gives."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from erjepa.objective import (
    JEPALoss,
    PackedDecoder,
    PackedOutput,
    PairLosses,
    StepFlops,
    cosine_distance,
)
from erjepa.packing import PackedBatch
from erjepa.training.distributed import (
    all_reduce_sum,
    gather_interleaved,
    gradient_scale,
)
from erjepa.training.sharding import set_last_backward
from erjepa.training.signals import StopSignals


class StepTotals(NamedTuple):
    """Totals of one pass of a step, over all ranks and micro-batches.

    Args:
        labels (int): tokens that the next-token loss predicts.
        pairs (int): pairs.
        tokens (int): tokens that are computed.
        flops (int): operations.
        views (int): pairs with embeddings: all, or none.
    """

    labels: int = 0
    pairs: int = 0
    tokens: int = 0
    flops: int = 0
    views: int = 0


class PassResult(NamedTuple):
    """Outcome of one pass over B pairs, in batch order, equal on every rank.

    Args:
        example_ids (Tensor): int64 [B].
        loss (Tensor): weighted loss of the pass, scalar.
        lm (Tensor): cross-entropy summed over each pair's labels, [B].
        labels (Tensor): how many labels each pair has, float32, [B].
        jepa (Tensor): :math:`d(p, z^a)` of each pair, [B], or [0] without views.
        source (Tensor): :math:`z^u`, [B, H] or [0, H].
        cosine_paired (Tensor): mean cosine of :math:`p_i` and :math:`z^a_i`, scalar.
        cosine_shuffled (Tensor): mean cosine of :math:`p_i` and :math:`z^a_{i+1}`, scalar.
        weight (float): of the pass in the loss of the step.
    """

    example_ids: Tensor
    loss: Tensor
    lm: Tensor
    labels: Tensor
    jepa: Tensor
    source: Tensor
    cosine_paired: Tensor
    cosine_shuffled: Tensor
    weight: float = 1.0

    @property
    def token_loss(self) -> Tensor:
        """Cross-entropy a label, over all pairs, scalar."""
        return self.lm.sum() / self.labels.sum().clamp(min=1)

    def scores(self, kind: str) -> Tensor:
        """What the memory scores pairs by, [B]: ``jepa``, or ``lm``, cross-entropy a label."""
        return self.jepa if kind == "jepa" else self.lm / self.labels.clamp(min=1)

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
        lm (Tensor): as in :class:`PassResult`, [n], and
        labels (Tensor): likewise.
        views (Tensor): :math:`z^u`, :math:`p` and :math:`z^a`, [n, 3, H], or [0, 3, H].
    """

    order: Tensor
    example_ids: Tensor
    loss: Tensor
    lm: Tensor
    labels: Tensor
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
    losses = [torch.stack([output.lm, output.labels], dim=1) for output in outputs]
    lm, labels = gathered(losses).T.contiguous()
    return PassResult(
        example_ids=gathered([output.example_ids for output in outputs]),
        loss=all_reduce_sum(torch.stack([output.loss for output in outputs]).sum()),
        lm=lm,
        labels=labels,
        jepa=distance(predicted, target),
        source=source,
        cosine_paired=1 - cosine_distance(predicted, target).mean(),
        cosine_shuffled=1 - cosine_distance(predicted, target.roll(1, 0)).mean(),
    )


class Passes:
    """Runs the passes of a step, each over its micro-batches.

    Args:
        model (PackedDecoder): the model, sharded or not.
        loss_fn (JEPALoss): the objective of a pass.
        device (torch.device): device of the run.
        forward_context (AbstractContextManager[Any]): entered for every forward pass.
        stop_signals (StopSignals): which :meth:`totals` gathers.
        keep_gathered (bool): keep sharded weights gathered over the micro-batches of a step.
    """

    def __init__(
        self,
        model: PackedDecoder,
        loss_fn: JEPALoss,
        device: torch.device,
        *,
        forward_context: AbstractContextManager[Any],
        stop_signals: StopSignals,
        keep_gathered: bool,
    ) -> None:
        self._model = model
        self._loss_fn = loss_fn
        self._device = device
        self._forward_context = forward_context
        self._stop_signals = stop_signals
        self._keep_gathered = keep_gathered
        self._count_flops = StepFlops(model.decoder)
        self._gradient_scale = gradient_scale(device)

    def totals(self, batches: list[PackedBatch]) -> StepTotals:
        """What all ranks hold, who learn with it whether one of them was told to stop."""
        counts = [
            (
                *(b.num_labels, b.num_pairs, b.num_tokens, self._count_flops(b)),
                *(b.source_pos.numel(), 0),
            )
            for b in batches
        ]
        counts.append((0, 0, 0, 0, 0, self._stop_signals.vote()))
        # On the CPU, so that nothing waits for the device.
        total = torch.tensor(counts, dtype=torch.int64).sum(dim=0)
        *totals, votes = all_reduce_sum(total).tolist()
        self._stop_signals.agree(votes)
        return StepTotals(*totals)

    def forward_backward(
        self,
        batches: list[PackedBatch],
        totals: StepTotals,
        *,
        weight: float = 1.0,
        last: bool,
    ) -> PassResult:
        """Accumulate the gradient of ``weight`` times the loss of a pass.

        Args:
            batches (list[PackedBatch]): micro-batches of this rank, as many as of every rank.
            totals (StepTotals): of the pass.
            weight (float): of its loss in that of the step.
            last (bool): whether it is the last pass of the step, after which ranks reduce
                their gradients.

        Returns:
            PassResult: the same on every rank.
        """
        outputs = []
        for i, batch in enumerate(batches):
            set_last_backward(
                self._model,
                last and i == len(batches) - 1,
                keep_gathered=self._keep_gathered,
            )
            batch = batch.to(self._device)
            with self._forward_context:
                output = self._model(batch)
                loss, pair_losses = self._loss_of(output, batch, totals)
            (loss * weight * self._gradient_scale).backward()
            views = torch.stack(output[1:], dim=1).detach().float()
            lm = pair_losses.lm
            labels = torch.zeros_like(lm).index_add(
                0, batch.label_pair, torch.ones_like(batch.labels, dtype=lm.dtype)
            )
            outputs.append(
                PassOutput(
                    batch.order,
                    batch.example_ids,
                    loss.detach(),
                    lm,
                    labels,
                    views,
                )
            )
        result = gather_pass(
            outputs,
            totals.pairs,
            has_views=totals.views > 0,
            distance=self._loss_fn.distance,
        )
        return result._replace(weight=weight)

    @torch.no_grad()
    def loss(self, batches: list[PackedBatch], totals: StepTotals) -> Tensor:
        """Loss of a pass without its gradient, scalar, the same on every rank."""
        loss = torch.zeros((), device=self._device)
        for batch in batches:
            batch = batch.to(self._device)
            loss += self._loss_of(self._model(batch), batch, totals)[0]
        return all_reduce_sum(loss)

    def _loss_of(
        self, output: PackedOutput, batch: PackedBatch, totals: StepTotals
    ) -> tuple[Tensor, PairLosses]:
        return self._loss_fn(output, batch, max(totals.labels, 1), max(totals.pairs, 1))
