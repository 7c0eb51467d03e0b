"""Disk space: how much checkpoints will take, and how much is free."""

import errno
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from erjepa.configs import Config

_BESIDE = 32 << 20  # approximate bytes of tokenizer and configs
# What is full: the disk, the user's part of it, or a file of limited size.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ADAM = 2  # approximate optimizer states per trainable weight


class CheckpointSizes(NamedTuple):
    """Approximate bytes of the parts of a checkpoint.

    Args:
        weights: merged or fully trained model, with its average.
        adapter: adapter in both formats, with its average.
        state: state that is needed only to resume.
        memory: episodic memory, once it is full or holds all pairs.
    """

    weights: int
    adapter: int
    state: int
    memory: int

    @property
    def resumable(self) -> int:
        """Bytes of a checkpoint that can be resumed."""
        return self.weights + self.adapter + self.state + self.memory + _BESIDE

    def run(self, cfg: Config, epochs: int) -> int:
        """Return the most bytes that the checkpoints of a run with ``epochs`` left take at once.

        If the run keeps all checkpoints, those within epochs are not counted.
        """
        if cfg.keep_last_n is None:
            num_resumable, older = epochs, 0
        else:
            # A new one is written before the oldest is deleted.
            num_resumable = 1 + max(cfg.keep_last_n, 2)
            if cfg.save_every_n_steps is None:
                num_resumable = min(num_resumable, epochs)
            older = epochs - 1 if cfg.keep_epochs else 0
        best = 2 if cfg.keep_best else 0
        of_each = self.weights + self.adapter + self.memory
        kept = (num_resumable + older + best) * of_each
        # They hold the adapter only, or all trained weights.
        of_each = (self.adapter or self.weights) + self.memory
        budgets = len(cfg.checkpoint_at_flops or []) * of_each
        return kept + num_resumable * self.state + budgets + _BESIDE


def checkpoint_sizes(
    cfg: Config,
    model: nn.Module,
    *,
    dtype: torch.dtype,
    has_adapters: bool,
    memory: int,
) -> CheckpointSizes:
    """Return the sizes of a run's checkpoints.

    Args:
        model: its decoder is ``decoder``; on any device, sharded or not.
        dtype: of the exported model.
        has_adapters: whether the trainable weights are adapters.
        memory: bytes of the episodic memory.
    """
    averaged = cfg.ema_decay is not None
    trained = [p for p in model.parameters() if p.requires_grad]
    decoder = model.get_submodule("decoder").parameters()
    base = [p for p in decoder if not (has_adapters and p.requires_grad)]
    exported = dtype.itemsize * sum(p.numel() for p in base)
    weights = 0 if cfg.save_adapter_weights_only else exported
    trained_bytes = sum(p.nbytes for p in trained)
    average = 4 * sum(p.numel() for p in trained) if averaged else 0
    return CheckpointSizes(
        weights=weights * (2 if averaged else 1),
        adapter=2 * (trained_bytes + average) if has_adapters else 0,
        state=_ADAM * trained_bytes + (0 if has_adapters else trained_bytes) + average,
        memory=memory,
    )


def require_space(folder: Path, sizes: CheckpointSizes, run: int) -> str | None:
    """Return a warning if the disk of ``folder`` lacks the ``run`` bytes of all checkpoints.

    Raises:
        OSError: if it lacks space for even one checkpoint.
    """
    free = shutil.disk_usage(folder).free
    has_merged = bool(sizes.adapter and sizes.weights)
    if free < sizes.resumable:
        less = "; save_adapter_weights_only=True takes less" * has_merged
        raise OSError(
            f"output_dir={folder}: a checkpoint takes about {readable(sizes.resumable)}, and "
            f"{readable(free)} are free. Free some or choose another output_dir{less}."
        )
    if free < run:
        less = "save_adapter_weights_only=True, " * has_merged
        return (
            f"{folder} may fill up: the checkpoints of the run take about {readable(run)}, and "
            f"{readable(free)} are free; {less}keep_last_n=2 and keep_epochs=False take less."
        )
    return None


def is_full_disk(error: Exception, folder: Path, needed: int) -> bool:
    """Return whether writing ``needed`` bytes to ``folder`` failed for lack of space.

    safetensors has the code of the system in its text; torch tells only that it could not write.
    The free space is checked too, so what was written must be deleted before.
    """
    return (
        getattr(error, "errno", None) in _FULL
        or any(f"(os error {code})" in str(error) for code in _FULL)
        or "inline_container.cc" in str(error)
        or shutil.disk_usage(folder).free < needed
    )


def readable(size: float) -> str:
    """Format a number of bytes, such as ``4.9 GB``."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.1f} {units[0]}"
