"""The summary that a run logs before it starts."""

import logging
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torchtune import utils

from erjepa.checkpoints.model_card import base_of, datasets_of, method_of
from erjepa.configs import Config
from erjepa.objective import PackedDecoder
from erjepa.training.run.memory import RunMemory
from erjepa.training.run.progress import RunProgress
from erjepa.training.run.replay_summary import (
    changed_settings,
    forgetting_warnings,
    inherited_summary,
    replay_summary,
)
from erjepa.training.run.steps import TrainingPairs
from erjepa.utils.escape import counted, one_line
from erjepa.utils.files import CONFIG

log = utils.get_logger("INFO")


def log_summary(
    cfg: Config,
    model: PackedDecoder,
    pairs: TrainingPairs,
    memory: RunMemory,
    progress: RunProgress,
    *,
    carried: Sequence[str],
    device: torch.device,
) -> None:
    """Log the main settings of a run on rank 0.

    Args:
        model: sharded or not.
        carried: descriptions of weights from earlier runs.
    """
    values = cfg.as_dict()
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    rank = cfg.model.get("lora_rank")
    kind = "every weight" if rank is None else f"adapters of rank {rank}"
    ranks = dist.get_world_size()
    of_step = pairs.sampler.examples_per_step
    carried = [*carried, *inherited_summary(memory, of_step)]
    changed = changed_settings(memory)
    stop = [f"{name} {n:g}" for name, n in vars(cfg.stop).items() if n is not None]
    method, objective = method_of(values)
    lr, warmup = cfg.optimizer.get("lr"), cfg.lr_scheduler.get("num_warmup_steps")
    after = f", after {counted(warmup, 'warm-up step')}" if warmup else ""
    rows = ", a text per row" if model.attention == "causal" else ""
    kind_of_device = device.type
    if kind_of_device == "cuda":
        kind_of_device = torch.cuda.get_device_name(device)
    resumes = f"; resumes after step {progress.steps:,}" if progress.steps else ""
    lines = {
        "model": f"{cfg.model.name} of {base_of(values)}, "
        f"{_count(sum(size for size, _ in sizes))} parameters, {cfg.dtype}{rows}",
        "trained": f"{kind}: {_count(trained)} parameters, "
        f"{cfg.trainable_dtype or cfg.dtype}",
        "data": f"{', '.join(call for _, call in datasets_of(values['dataset']))}: "
        f"{counted(pairs.sampler.num_examples, 'pair')} to train on, "
        f"{len(pairs.held_out):,} to validate on",
        "steps": f"{progress.expected_steps():,} of {counted(of_step, 'pair')} ({cfg.batch_size} x "
        f"{cfg.gradient_accumulation_steps} accumulated x {counted(ranks, 'rank')}), "
        f"{counted(progress.epochs, 'epoch')} of {progress.steps_per_epoch:,}{resumes}",
        "stop": ", ".join(stop) or "after the last epoch",
        "objective": f"{method}: {objective}",
        **({"carried": "; ".join(carried)} if carried else {}),
        **({"changed": changed} if changed else {}),
        "replay": replay_summary(memory, of_step),
        "optimizer": f"{cfg.optimizer.name}, lr {'by default' if lr is None else lr}{after}",
        "devices": f"{ranks} x {kind_of_device}",
        "output": f"{cfg.output_dir}, with every key in {CONFIG}",
    }
    text = [f"  {name:<10}{one_line(line)}" for name, line in lines.items()]
    utils.log_rank_zero(log, "\n".join(["This run:", *text]))
    warnings = list(_warnings(cfg, progress))
    if not progress.steps:
        warnings += forgetting_warnings(cfg, memory, pairs.sampler.num_examples)
    for warning in warnings:
        utils.log_rank_zero(log, warning, level=logging.WARNING)


def _warnings(cfg: Config, progress: RunProgress) -> Iterator[str]:
    """Yield warnings about settings that have no effect, or that end the run too early."""
    if progress.is_over():
        yield (
            "The run has already ended, so nothing is trained: raise epochs or the limit in stop, "
            "or start another run with continue_from"
        )
    warmup = cfg.lr_scheduler.get("num_warmup_steps") or 0
    if warmup >= (steps := progress.expected_steps()):
        yield (
            f"lr_scheduler.num_warmup_steps={warmup}, but the run has {counted(steps, 'step')}: "
            f"the learning rate never reaches its value; set fewer, such as {steps // 10}"
        )
    distance = cfg.loss.get("distance") or "cosine"
    scores_by_it = cfg.replay.weight and cfg.replay.score == "jepa"
    if distance != "cosine" and cfg.loss.get("jepa_weight") == 0 and not scores_by_it:
        yield (
            f"loss.distance={distance} has no effect, as loss.jepa_weight=0; set the weight above 0"
        )
    if cfg.orthogonal_weight and cfg.init_from and not cfg.base_adapters:
        yield (
            f"orthogonal_weight={cfg.orthogonal_weight} has no effect, as the earlier adapter is "
            "trained further; name its run in base_adapters instead"
        )


def _count(number: int) -> str:
    for unit, size in (("billion", 10**9), ("million", 10**6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"
