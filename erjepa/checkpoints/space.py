"""Space on the disk: what checkpoints will take, and what is free."""

import errno
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from erjepa.configs import Config

_FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)
_BESIDE = 32 << 20  # bytes: tokenizer, configs, memory; about
_ADAM = 2  # numbers that an optimizer keeps of each trained one; about


class CheckpointSizes(NamedTuple):
    """Approximate bytes of the parts of a checkpoint.

    Args:
        weights: merged model, or the trained one; with its average.
        adapter: adapter in both formats, with its average.
        state: what only resuming needs.
    """

    weights: int
    adapter: int
    state: int

    @property
    def whole(self) -> int:
        """Of a checkpoint that can be resumed."""
        return self.weights + self.adapter + self.state + _BESIDE

    def run(self, cfg: Config, epochs: int) -> int:
        """Most bytes that the checkpoints of a run take at a time, ``epochs`` before its end.

        Where it keeps all, those within epochs are left out.
        """
        keeps_epochs = cfg.keep_epochs or cfg.keep_last_n is None
        # One is written before an older one goes.
        resumable = 1 + (max(cfg.keep_last_n, 2) if cfg.keep_last_n else 0)
        if cfg.save_every_n_steps is None:
            resumable = min(resumable, epochs)
        older = epochs - 1 if keeps_epochs else 0
        best = 2 if cfg.keep_best else 0
        budgets = len(cfg.checkpoint_at_flops or [])
        kept = (resumable + older + best) * (self.weights + self.adapter)
        return kept + resumable * self.state + budgets * self.adapter + _BESIDE


def checkpoint_sizes(
    cfg: Config,
    base: Iterable[Tensor],
    trained: Iterable[nn.Parameter],
    *,
    has_adapters: bool,
) -> CheckpointSizes:
    """What a checkpoint takes.

    Args:
        base: weights of the base model, as its files have them.
        trained: trainable weights, sharded or not.
        has_adapters: whether those are adapters.
    """
    averaged = cfg.ema_decay is not None
    weights = 0 if cfg.save_adapter_weights_only else sum(map(_bytes, base))
    trained = list(trained)
    own = sum(map(_bytes, trained))
    average = 4 * sum(p.shape.numel() for p in trained) if averaged else 0
    return CheckpointSizes(
        weights=weights * (2 if averaged else 1),
        adapter=2 * (own + average) if has_adapters else 0,
        state=_ADAM * own + (0 if has_adapters else own) + average,
    )


def require_space(folder: Path, sizes: CheckpointSizes, run: int) -> str | None:
    """A warning if the disk of ``folder`` may fill up with the ``run`` bytes of all checkpoints.

    Raises:
        OSError: if there is no room for one checkpoint.
    """
    free = free_bytes(folder)
    less = (
        "save_adapter_weights_only=True, keep_last_n=2 and keep_epochs=False take less"
    )
    if free < sizes.whole:
        raise OSError(
            f"output_dir={folder}: a checkpoint takes about {readable(sizes.whole)}, and "
            f"{readable(free)} are free. Free some or choose another output_dir; {less}."
        )
    if free < run:
        return (
            f"{folder} may fill up: the checkpoints of the run take about {readable(run)}, "
            f"and {readable(free)} are free; {less}."
        )
    return None


def free_bytes(folder: Path) -> int:
    """What this user may still write to the disk of ``folder``."""
    return shutil.disk_usage(folder).free


def is_full_disk(error: Exception, folder: Path, needed: int) -> bool:
    """Whether writing ``needed`` bytes to ``folder`` failed for lack of space.

    torch and safetensors do not say so: what is free decides.
    """
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    files = (path for path in folder.rglob("*") if path.is_file())
    return free_bytes(folder) < needed - sum(path.stat().st_size for path in files)


def readable(size: float) -> str:
    """Bytes in words, such as ``4.9 GB``."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


def _bytes(tensor: Tensor) -> int:
    return torch.Size(tensor.shape).numel() * tensor.element_size()
