"""The metrics that a run logs."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from torch import Tensor
from torchtune import training, utils
from tqdm import tqdm

from erjepa.configs import Config
from erjepa.objective import rankme, retrieval_at_1
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.progress import RunProgress
from erjepa.training.step.passes import PassResult

log = utils.get_logger("INFO")

# Counts of a step, which are divided by its seconds when they are logged.
_RATES = ("tokens_per_second_per_gpu", "pairs_per_second")


def step_metrics(
    new: PassResult,
    replayed: PassResult | None,
    memory: RunMemory,
    progress: RunProgress,
    *,
    tokens: int,
    flops: int,
    lr: float,
    grad_norm: float,
    log_collapse: bool,
) -> dict[str, Any]:
    """Return the metrics of a step by name. Rates are counts until :class:`MetricsLog` divides
    them by the step's seconds.

    Args:
        progress: progress after the step.
        tokens: tokens that the step processed, over all ranks.
        flops: FLOPs of the step, over all ranks.
        lr: learning rate of the next step.
        grad_norm: norm of the gradient before clipping.
        log_collapse: whether to add ``rankme`` and ``retrieval_at_1``.
    """
    replay = memory.replay
    metrics = {
        "loss": new.loss,
        "lm_loss": new.token_loss,
        "replay_lm_loss": 0.0,
        "replay_jepa_loss": 0.0,
        "replayed": 0 if replayed is None else len(replayed.example_ids),
        "tokens_per_second_per_gpu": tokens / dist.get_world_size(),
        "pairs_per_second": len(new.example_ids),
        "step_flops": flops,
    }
    if len(new.jepa):
        metrics["jepa_loss"] = new.jepa.mean()
        metrics["cosine_paired"] = new.cosine_paired
        if len(new.jepa) > 1:
            metrics["cosine_shuffled"] = new.cosine_shuffled
        if log_collapse:
            metrics["rankme"] = rankme(new.target[0])
            metrics["retrieval_at_1"] = retrieval_at_1(new.predicted[0], new.target[0])
    metrics |= new.terms
    if replayed is not None and replay is not None and replay.adapts_weight:
        metrics["replay_weight"] = replayed.weight
    if replayed is not None and len(replayed.example_ids):
        metrics["loss"] = new.loss + replayed.weight * replayed.loss
        metrics["replay_lm_loss"] = replayed.token_loss
        if len(replayed.jepa):
            metrics["replay_jepa_loss"] = replayed.jepa.mean()
        metrics |= {f"replay_{name}": value for name, value in replayed.terms.items()}
    return {
        **metrics,
        **memory.origins.metrics(new, replayed),
        "memory_size": 0 if replay is None else len(replay),
        "lr": lr,
        "grad_norm": grad_norm,
        "total_flops": progress.totals["flops"],
        "total_tokens": progress.totals["tokens"],
    }


class MetricsLog:
    """Passes the metrics of steps to a logger and a progress bar, on rank 0."""

    def __init__(
        self, cfg: Config, progress: RunProgress, device: torch.device
    ) -> None:
        self._progress = progress
        self._every_n_steps = cfg.log_every_n_steps
        self._peak_memory = cfg.log_peak_memory_stats and device.type == "cuda"
        self._device = device
        self._logger = None
        self._bar: tqdm | None = None
        self._is_terminal = sys.stderr.isatty()
        self._has_warned = False
        if dist.get_rank() == 0:
            self._logger = cfg.metric_logger.build()
            if not progress.is_over():  # otherwise the keys of the steps before stay
                self._logger.log_config(OmegaConf.create(cfg.as_written()))

    def start(self) -> tqdm:
        """Return the progress bar of the run; the first call creates it at the current step."""
        if self._bar is None:
            self._bar = tqdm(
                initial=self._progress.steps,
                total=self._progress.expected_steps(),
                unit="step",
                # Seconds. In the file of a log, each refresh of the bar stays.
                mininterval=0.1 if self._is_terminal else 10,
                disable=self._logger is None or self._progress.is_over(),
            )
        return self._bar

    def step(self, metrics: dict[str, Any], seconds: float) -> None:
        """Log a step, already counted in the progress, if it has validation metrics or is due by
        ``log_every_n_steps``.
        """
        bar, progress, step = self.start(), self._progress, self._progress.steps
        if self._logger is None:  # another rank than 0
            return
        bar.total = progress.expected_steps()
        bar.update(1)
        if metrics["grad_norm"] == 0 and not self._has_warned:
            self._has_warned = True
            log.warning(
                f"The gradient is exactly zero at step {step}, at a loss of "
                f"{metrics['loss']:.4f}: nothing is learned. Usually optimizer.lr is far too "
                "large and has driven the weights out of range; or every weight of the loss "
                "is 0."
            )
        validated = {k: f"{v:.4f}" for k, v in metrics.items() if k.startswith("val_")}
        if not validated and step % self._every_n_steps:
            return
        metrics = {
            k: v.item() if isinstance(v, Tensor) else v for k, v in metrics.items()
        }
        for rate in _RATES:
            metrics[rate] /= seconds
        if self._peak_memory:
            metrics.update(training.get_memory_stats(device=self._device))
        epoch = progress.summary()["epoch"]
        bar.set_description(
            f"epoch {epoch:.2f} of {progress.epochs}, loss {metrics['loss']:.4f}",
            refresh=self._is_terminal,
        )
        if validated:
            bar.set_postfix(validated, refresh=self._is_terminal)
        self._logger.log_dict(metrics, step=step)

    def close(self) -> None:
        if self._logger is not None:
            self._logger.close()
