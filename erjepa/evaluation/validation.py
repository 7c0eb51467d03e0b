"""How a model does on pairs held out of training, at a moment of the training."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchtune.modules import TransformerDecoder
from torchtune.modules.transforms import Transform

from erjepa.configs import Config
from erjepa.datasets import Pairs
from erjepa.evaluation.answers import generate_answers
from erjepa.evaluation.examples import scoring_task
from erjepa.evaluation.generation import batches_of_like_length
from erjepa.evaluation.origin_losses import OriginLosses
from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.loss import JEPALoss, PairLosses
from erjepa.packing import PairCollator
from erjepa.tasks.score import score_predictions
from erjepa.tasks.task import Task
from erjepa.training.model.distributed import (
    all_reduce_sum,
    gather_interleaved,
    gather_objects,
    on_rank_zero,
)
from erjepa.training.step.gathered import gathered
from erjepa.training.step.passes import stack_views, unstack_views


class HeldOutLoss:
    """The objective of training on held-out pairs, without dropout and without gradient."""

    def __init__(
        self,
        dataset: Pairs,
        ids: Sequence[int],
        collator: PairCollator,
        loss_fn: JEPALoss,
        *,
        batch_size: int,
        device: torch.device,
    ) -> None:
        world_size = dist.get_world_size()
        mine = [dataset[i] for i in ids[dist.get_rank() :: world_size]]
        most = -(-len(ids) // world_size)
        # As many on every rank: a forward pass of a sharded model takes them all.
        self._batches = collator.split(mine, -(-most // batch_size))
        self._dataset = dataset
        self._has_views = collator.views != "none"
        self._num_pairs = len(ids)
        self._loss_fn = loss_fn
        self._device = device

    @torch.no_grad()
    def __call__(self, model: PackedDecoder) -> dict[str, float]:
        """Losses under the model as it is.

        Returns:
            ``val_lm_loss``, nats a label; with views ``val_jepa_loss``, the mean distance, where
            InfoNCE contrasts all held-out pairs; ``val_loss``, their weighted sum; and of a list of
            datasets what :class:`OriginLosses` adds up. The same on every rank.
        """
        origins = OriginLosses(self._dataset, self._device)
        sums = torch.zeros(4, dtype=torch.float64, device=self._device)
        contrasts, views = self._has_views and self._loss_fn.is_contrastive, []
        batches = [batch.to(self._device) for batch in self._batches]
        losses = []
        for batch in batches:
            output = model(batch)
            losses.append(self._loss_fn(output, batch, 1, 1)[1])
            if contrasts:
                views.append(stack_views(output))
        if contrasts:
            losses = self._contrasted(losses, torch.cat(views))
        for batch, of_pairs in zip(batches, losses, strict=True):
            origins.add(batch, of_pairs)
            sums[:2] += torch.stack([of_pairs.lm.sum(), of_pairs.jepa.sum()])
            sums[2:] += sums.new_tensor([batch.num_labels, batch.num_pairs])
        lm, jepa, labels, pairs = all_reduce_sum(sums).tolist()
        metrics = {"val_loss": self._loss_fn.lm_weight * lm / labels}
        metrics["val_lm_loss"] = lm / labels
        if self._has_views:
            metrics["val_jepa_loss"] = jepa / pairs
            metrics["val_loss"] += self._loss_fn.jepa_weight * jepa / pairs
        return {**metrics, **origins.metrics()}

    def _contrasted(self, losses: list[PairLosses], views: Tensor) -> list[PairLosses]:
        """The losses of this rank's batches, each pair contrasted with all of all ranks."""
        all_views = gather_interleaved(views, self._num_pairs)
        _, predicted, target = unstack_views(all_views)
        errors = self._loss_fn.errors(predicted, target)
        mine = errors[dist.get_rank() :: dist.get_world_size()]
        parts = mine.split([len(of_pairs.lm) for of_pairs in losses])
        return [
            PairLosses(of_pairs.lm, part)
            for of_pairs, part in zip(losses, parts, strict=True)
        ]


class HeldOutAccuracy:
    """The share of held-out pairs that are answered rightly."""

    def __init__(
        self,
        dataset: Pairs,
        ids: Sequence[int],
        tokenizer: Transform,
        task: Task,
        *,
        batch_size: int,
        max_new_tokens: int,
    ) -> None:
        prompts = [dataset.prompt(i) for i in ids]
        batches = batches_of_like_length(prompts, batch_size)
        self._batches = [[ids[i] for i in batch] for batch in batches]
        self._dataset = dataset
        self._tokenizer = tokenizer
        self._task = task
        self._max_new_tokens = max_new_tokens

    def __call__(self, model: TransformerDecoder) -> dict[str, float]:
        """Accuracy under the model as it is.

        Returns:
            ``val_accuracy``, and of a list of datasets ``val_accuracy_NAME`` of each that has pairs
            here. The same on every rank.
        """
        mine = []
        for batch in self._batches[dist.get_rank() :: dist.get_world_size()]:
            mine += generate_answers(
                model,
                self._tokenizer,
                self._dataset,
                batch,
                max_new_tokens=self._max_new_tokens,
            )
        predictions = [p for answers in gather_objects(mine) for p in answers]
        return on_rank_zero(lambda: self._score(predictions))

    def _score(self, predictions: list[dict[str, Any]]) -> dict[str, float]:
        _, summary = score_predictions(self._task, predictions)
        by_origin = {
            f"val_accuracy_{part.origin}": part.share
            for part in summary.by_origin or []
        }
        return {"val_accuracy": summary.accuracy, **by_origin}


class Validation:
    """What is measured on the held-out pairs of a run: losses, and accuracy where asked for."""

    def __init__(
        self,
        cfg: Config,
        dataset: Pairs,
        ids: Sequence[int],
        tokenizer: Transform,
        collator: PairCollator,
        loss_fn: JEPALoss,
        device: torch.device,
    ) -> None:
        self.loss = HeldOutLoss(
            dataset, ids, collator, loss_fn, batch_size=cfg.batch_size, device=device
        )
        self.accuracy = None
        if generate := cfg.validation.generate:
            answered = ids[:generate]
            task = scoring_task(cfg, dataset, cfg.dataset, answered)
            self.accuracy = HeldOutAccuracy(
                dataset,
                answered,
                tokenizer,
                task,
                batch_size=cfg.eval_batch_size,
                max_new_tokens=cfg.max_new_tokens,
            )
        self._is_compiled = cfg.compile

    def __call__(self, model: PackedDecoder) -> dict[str, float]:
        """Measure a model in training, and leave it in training. Nothing random is drawn."""
        model.eval()
        metrics = self.loss(model)
        if self.accuracy is not None:
            # Compiled layers would be compiled again for each length of the cache.
            stance = torch.compiler.set_stance if self._is_compiled else nullcontext
            with stance("force_eager"), gathered(model):
                metrics.update(self.accuracy(model.decoder))
        model.train()
        return metrics
