"""Forward and backward passes of a step over its new or its replayed pairs."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from erjepa.objective import (
    JEPALoss,
    PackedDecoder,
    PackedOutput,
    StepFlops,
    cosine_distance,
)
from erjepa.packing import PackedBatch
from erjepa.training.model.distributed import all_reduce_sum, gather_interleaved
from erjepa.training.model.sharding import set_last_backward
from erjepa.training.step.random_state import (
    RandomState,
    random_state,
    set_random_state,
)
from erjepa.training.step.whole_pass import WholePassTerm


class StepTotals(NamedTuple):
    """Totals of one pass over all ranks and micro-batches."""

    labels: int = 0  # tokens that the next-token loss predicts
    pairs: int = 0
    tokens: int = 0  # processed tokens, without padding
    flops: int = 0
    views: int = 0  # pairs whose embeddings are read: all, or none
    seed: int = 0  # of random draws: sum of the example ids, plus the step


class PassResult(NamedTuple):
    """Result of one pass over B pairs, in batch order, the same on every rank."""

    example_ids: Tensor  # int64 [B]
    loss: Tensor  # weighted loss of the pass, scalar
    lm: Tensor  # cross-entropy summed over each pair's labels, [B]
    labels: Tensor  # number of labels of each pair, float32 [B]
    jepa: Tensor  # d(p, z^a) of each pair, [B], or [0] without views
    source: Tensor  # z^u, [B, H] or [0, H]
    predicted: Tensor  # p, [m, B, H] or [m, 0, H]
    target: Tensor  # z^a, which p is compared with, same shape as p
    terms: dict[str, Tensor]  # unweighted loss terms that depend on all pairs, by name
    weight: float = 1.0  # weight of the pass in the loss of the step

    @property
    def cosine_paired(self) -> Tensor:
        """Mean cosine of p_i and z^a_i, scalar."""
        return 1 - cosine_distance(self.predicted, self.target).mean()

    @property
    def cosine_shuffled(self) -> Tensor:
        """Mean cosine of p_i and z^a_{i+1}, scalar."""
        return 1 - cosine_distance(self.predicted, self.target.roll(1, 1)).mean()

    @property
    def token_loss(self) -> Tensor:
        """Mean cross-entropy per label over all pairs, scalar."""
        return self.lm.sum() / self.labels.sum().clamp(min=1)

    def scores(self, kind: str) -> Tensor:
        """Errors that the memory stores as scores, [B]: ``jepa``, or ``lm`` (mean per label)."""
        return self.jepa if kind == "jepa" else self.lm / self.labels.clamp(min=1)

    def split(self, num_first: int) -> "tuple[PassResult, PassResult]":
        """Split into the first ``num_first`` pairs and the rest. The first part keeps the loss and
        the terms of the whole pass.
        """
        rest = self._part(slice(num_first, None))
        empty = torch.zeros_like(self.loss)
        return self._part(slice(num_first)), rest._replace(loss=empty, terms={})

    def _part(self, part: slice) -> "PassResult":
        return self._replace(
            example_ids=self.example_ids[part],
            lm=self.lm[part],
            labels=self.labels[part],
            jepa=self.jepa[part],
            source=self.source[part],
            predicted=self.predicted[:, part],
            target=self.target[:, part],
        )

    def non_finite_ids(self) -> Tensor:
        bad = ~torch.isfinite(self.lm)
        if len(self.jepa):
            bad |= ~torch.isfinite(self.jepa)
        return self.example_ids[bad]


class PassOutput(NamedTuple):
    """Result of one micro-batch of n pairs on one rank."""

    order: Tensor  # index of each pair among the pairs of this rank in the pass, [n]
    example_ids: Tensor  # int64 [n]
    loss: Tensor  # its part of the weighted loss of the pass, scalar
    lm: Tensor  # as in PassResult, [n]
    labels: Tensor  # as in PassResult, [n]
    views: Tensor  # embeddings from stack_views, [n, V, H] or [0, V, H]


def _in_batch_order(
    parts: list[Tensor], orders: list[Tensor], num_pairs: int
) -> Tensor:
    """Gather per-pair values of micro-batches over all ranks, in batch order.

    Undoes two permutations: packing sorts the pairs of a rank by shared tokens, and the pairs of a
    step are dealt to the ranks in turn.
    """
    in_order = torch.cat(orders).argsort()
    return gather_interleaved(torch.cat(parts)[in_order], num_pairs)


class Passes:
    """Runs the passes of a step, each over a list of micro-batches.

    Args:
        forward_context: entered for each forward pass of the model with gradient. The loss is
            computed outside of it: its largest tensors, log-probabilities, are used at once, so
            that offloading them would not pay.
        keep_gathered: whether sharded weights stay gathered over the micro-batches of a step.
    """

    def __init__(
        self,
        model: PackedDecoder,
        loss_fn: JEPALoss,
        device: torch.device,
        forward_context: AbstractContextManager[Any],
        *,
        keep_gathered: bool,
    ) -> None:
        self._model = model
        self._loss_fn = loss_fn
        self._device = device
        self._forward_context = forward_context
        self._keep_gathered = keep_gathered
        self._count_flops = StepFlops(model.decoder)

    def totals(
        self, batches: list[PackedBatch], checksum: int = 0, step: int = 0
    ) -> StepTotals:
        """Return the totals of the micro-batches of all ranks.

        Args:
            checksum: checksum of this rank's memory and draw, see :class:`ReplayBatch`.
            step: step of the run, 1-based; 0 for a pass that belongs to no step.

        Raises:
            RuntimeError: if the checksums of the ranks differ.
        """
        counts = [self._counts(batch, len(batches)) for batch in batches]
        # Each rank sets its own entry, so the sum holds the checksums of all ranks.
        checksums = [0] * dist.get_world_size()
        checksums[dist.get_rank()] = checksum
        # On the CPU, to avoid a synchronization with the device.
        local = torch.tensor([*map(sum, zip(*counts, strict=True)), *checksums])
        summed = all_reduce_sum(local).tolist()
        totals = StepTotals(*summed[: -len(checksums)])
        _require_equal(summed[-len(checksums) :], step)
        of_whole = self._loss_fn.whole_flops(totals.views, self._model.embed_dim)
        # The same pairs, in every step of a small dataset, draw anew.
        seed = (totals.seed + step) % 2**63  # ids of earlier runs are negative
        return totals._replace(flops=totals.flops + of_whole, seed=seed)

    def _counts(self, batch: PackedBatch, num_batches: int) -> tuple[int, ...]:
        flops = flops_of(batch, num_batches, self._loss_fn, self._count_flops)
        return StepTotals(
            labels=batch.num_labels,
            pairs=batch.num_pairs,
            tokens=batch.num_tokens,
            flops=flops,
            views=batch.num_views,
            seed=int(batch.example_ids.sum()),
        )

    def forward_backward(
        self,
        batches: list[PackedBatch],
        totals: StepTotals,
        *,
        weight: float = 1.0,
        last: bool,
    ) -> PassResult:
        """Run a pass and accumulate the gradient of ``weight`` times its loss.

        Args:
            batches: micro-batches of this rank, the same number on every rank.
            last: whether to reduce gradients over the ranks after the last micro-batch.
        """
        outputs: list[PassOutput] = []
        needs_whole = self._loss_fn.needs_whole_batch and totals.views > 0
        term, states = None, list[RandomState]()
        if needs_whole and len(batches) > 1:
            term, states = self._look_ahead(batches, totals)
        for i, batch in enumerate(batches):
            if states:
                set_random_state(states[i], self._device)
            set_last_backward(
                self._model,
                last and i == len(batches) - 1,
                keep_gathered=self._keep_gathered,
            )
            output = self._forward(batch, totals, self._forward_context)
            loss, views = output.loss, output.views
            if needs_whole:
                # Each rank has a single micro-batch if there is no term yet.
                term = term or self._whole_pass_term([views], [output.order], totals)
                places = output.order * dist.get_world_size() + dist.get_rank()
                loss = loss + term.share(views, places)
            (loss * weight).backward()
            outputs.append(output._replace(loss=loss.detach(), views=views.detach()))
        result = self._gather(outputs, totals)._replace(weight=weight)
        return result if term is None else result._replace(terms=term.parts)

    @torch.no_grad()
    def measure(self, batches: list[PackedBatch], totals: StepTotals) -> PassResult:
        """Run a pass without gradient; arguments as in :meth:`forward_backward`. The loss of the
        result lacks :meth:`JEPALoss.whole`, whose memory grows with the pairs of the pass.
        """
        outputs = [self._forward(batch, totals, nullcontext()) for batch in batches]
        return self._gather(outputs, totals)

    @torch.no_grad()
    def loss(self, batches: list[PackedBatch], totals: StepTotals) -> Tensor:
        """Return the whole loss of a pass, scalar, without gradient; arguments as in
        :meth:`forward_backward`.
        """
        result = self.measure(batches, totals)
        if not (self._loss_fn.needs_whole_batch and totals.views):
            return result.loss
        predicted, target = result.predicted, result.target
        whole, _ = self._loss_fn.whole(predicted, target, totals.seed)
        return result.loss + whole

    def _forward(
        self,
        batch: PackedBatch,
        totals: StepTotals,
        context: AbstractContextManager[Any],
    ) -> PassOutput:
        """Return the result of a micro-batch, loss and views with their graph."""
        batch = batch.to(self._device)
        with context:
            output = self._model(batch)
        counts = max(totals.labels, 1), max(totals.pairs, 1)
        loss, lm_of_pairs = self._loss_fn(output, batch, *counts)
        return PassOutput(
            batch.order,
            batch.example_ids,
            loss,
            lm_of_pairs,
            batch.labels_of_pairs,
            stack_views(output),
        )

    def _gather(self, outputs: list[PassOutput], totals: StepTotals) -> PassResult:
        orders = [output.order for output in outputs]

        def gathered(parts: list[Tensor]) -> Tensor:
            return _in_batch_order(parts, orders, totals.pairs)

        views = [output.views for output in outputs]
        all_views = gathered(views) if totals.views else torch.cat(views)
        source, predicted, target = unstack_views(all_views)
        losses = [torch.stack([output.lm, output.labels], dim=1) for output in outputs]
        lm, labels = gathered(losses).T.contiguous()
        return PassResult(
            example_ids=gathered([output.example_ids for output in outputs]),
            loss=all_reduce_sum(torch.stack([output.loss for output in outputs]).sum()),
            lm=lm,
            labels=labels,
            jepa=self._loss_fn.errors(predicted, target),
            source=source,
            predicted=predicted,
            target=target,
            terms={},
        )

    @torch.no_grad()
    def _look_ahead(
        self, batches: list[PackedBatch], totals: StepTotals
    ) -> tuple[WholePassTerm, list[RandomState]]:
        """Return the term of a first forward pass, and the random state before each micro-batch.

        The second forward pass restores the random state for the same dropout. It may draw more
        random numbers than this pass, which skips the output projection and its adapters.
        """
        views, orders, states = [], [], []
        for batch in batches:
            states.append(random_state(self._device))
            batch = batch.to(self._device)
            output = self._model(replace(batch, label_pos=batch.label_pos[:0]))
            views.append(stack_views(output))
            orders.append(batch.order)
        return self._whole_pass_term(views, orders, totals), states

    def _whole_pass_term(
        self, views: list[Tensor], orders: list[Tensor], totals: StepTotals
    ) -> WholePassTerm:
        """Return the loss term that depends on all pairs, the same on every rank."""

        def term(views: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            _, predicted, target = unstack_views(views)
            return self._loss_fn.whole(predicted, target, totals.seed)

        parts = [part.detach() for part in views]
        return WholePassTerm.of(term, _in_batch_order(parts, orders, totals.pairs))


def flops_of(
    batch: PackedBatch, num_batches: int, loss_fn: JEPALoss, count_flops: StepFlops
) -> int:
    """Return the FLOPs of one of ``num_batches`` micro-batches of a pass."""
    flops = count_flops(batch)
    if num_batches > 1 and batch.num_views and loss_fn.needs_whole_batch:
        flops += count_flops.forward(batch)
    return flops


def _require_equal(checksums: list[int], step: int) -> None:
    """Raise a RuntimeError if ``checksums``, one per rank, differ."""
    ((usual, _),) = Counter(checksums).most_common(1)
    if others := [rank for rank, c in enumerate(checksums) if c != usual]:
        raise RuntimeError(
            f"The memory of rank {', '.join(map(str, others))} differs from that of rank "
            f"{checksums.index(usual)} at step {step}. Stopping before the optimizer "
            "update; use devices of one kind and the same versions on all ranks, and "
            "resume with resume_from_checkpoint=True"
        )


def stack_views(output: PackedOutput) -> Tensor:
    """Stack the embeddings of n pairs with m comparisons, float32 [n, 1 + 2 m, H]: the source, the
    m predictions, their m targets.
    """
    views = [output.source[None], output.predicted, output.target]
    return torch.cat([part.float() for part in views]).transpose(0, 1)


def unstack_views(views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Undo :func:`stack_views`: source [n, H], predictions [m, n, H] and targets [m, n, H]."""
    source, *rest = views.unbind(dim=1)
    comparisons = torch.stack(rest).unflatten(0, (2, -1))
    return source, comparisons[0], comparisons[1]
