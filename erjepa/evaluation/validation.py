"""Validation during training: losses and accuracy on held-out pairs."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torchtune.modules import TransformerDecoder

from erjepa.evaluation.answers import batches_of_examples, generate_answers
from erjepa.evaluation.examples import scoring_task
from erjepa.objective.decoder import PackedDecoder
from erjepa.packing import PackedBatch
from erjepa.tasks.score import score_predictions
from erjepa.tasks.task import Task
from erjepa.training.model.distributed import gather_objects, on_rank_zero
from erjepa.training.model.sharding import gathered
from erjepa.training.run.origins import Origins
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.step.passes import Passes

_PACKED = 512  # pairs to pack at once, whose time and memory grow with their square


class HeldOutLoss:
    """Computes the training objective on held-out pairs, without dropout and gradients."""

    def __init__(self, run: PreparedRun, passes: Passes, ids: Sequence[int]) -> None:
        world_size = dist.get_world_size()
        self._batches = list[PackedBatch]()
        for start in range(0, len(ids), _PACKED * world_size):
            part = ids[start : start + _PACKED * world_size]
            pairs = [run.dataset[i] for i in part[dist.get_rank() :: world_size]]
            # As many batches on every rank: all ranks of a sharded model run each forward.
            num_batches = -(-len(part) // (world_size * run.cfg.batch_size))
            self._batches += run.collators.new.split(pairs, num_batches)
        self._totals = passes.totals(self._batches)
        self._passes = passes
        self._origins, self._loss_fn = Origins(run.dataset), run.loss_fn

    def __call__(self) -> dict[str, float]:
        """Compute the losses of the model on all held-out pairs.

        Returns:
            ``val_lm_loss``, in nats per label; with views ``val_jepa_loss``, the mean distance
            (InfoNCE contrasts all held-out pairs); ``val_loss``, their weighted sum; and with a
            list of datasets the first two for each, as ``val_lm_loss_NAME``. Equal on all ranks.
        """
        result = self._passes.measure(self._batches, self._totals)
        doubled = {k: getattr(result, k).double() for k in ("lm", "labels", "jepa")}
        result = result._replace(**doubled)
        metrics = {"lm_loss": result.token_loss}
        loss = self._loss_fn.lm_weight * metrics["lm_loss"]
        if len(result.jepa):
            metrics["jepa_loss"] = result.jepa.mean()
            loss = loss + self._loss_fn.jepa_weight * metrics["jepa_loss"]
        metrics = {"loss": loss, **metrics, **self._origins.losses(result)}
        return {f"val_{name}": value.item() for name, value in metrics.items()}


class Validation:
    """Measures losses, and accuracy with ``validation.generate``, on a run's held-out pairs."""

    def __init__(self, run: PreparedRun, passes: Passes, ids: Sequence[int]) -> None:
        cfg, dataset = run.cfg, run.dataset
        self._run = run
        self.loss = HeldOutLoss(run, passes, ids)
        self._task: Task | None = None
        if num_answered := cfg.validation.generate:
            ids = ids[:num_answered]
            self._task = scoring_task(cfg, dataset, ids)
            self._batches = batches_of_examples(dataset, ids, cfg.eval_batch_size)

    def __call__(self, model: PackedDecoder) -> dict[str, float]:
        """Return the metrics of a model, and set it back to training mode. Draws no randomness."""
        model.eval()
        metrics = self.loss()
        if self._task is not None:
            # Compiled layers would recompile for each length of the cache.
            stance = torch.compiler.set_stance if self._run.cfg.compile else nullcontext
            with stance("force_eager"), gathered(model):
                metrics |= self._accuracy(model.decoder, self._task)
        model.train()
        return metrics

    def _accuracy(self, decoder: TransformerDecoder, task: Task) -> dict[str, float]:
        """Return ``val_accuracy`` and, with a list of datasets, ``val_accuracy_NAME`` of each that
        has held-out pairs here; equal on all ranks.
        """
        run, answered = self._run, []
        for batch in self._batches[dist.get_rank() :: dist.get_world_size()]:
            answered += generate_answers(
                decoder,
                run.tokenizer,
                run.dataset,
                batch,
                max_new_tokens=run.cfg.max_new_tokens,
            )
        predictions = [p for answers in gather_objects(answered) for p in answers]
        summary = on_rank_zero(lambda: score_predictions(task, predictions)[1])
        origins = summary.by_origin or []
        by_origin = {f"val_accuracy_{part.origin}": part.share for part in origins}
        return {"val_accuracy": summary.accuracy, **by_origin}
