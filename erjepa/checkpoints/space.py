"""Room on the disk: what checkpoints are going to take, and what is there."""

import errno
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

_FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)
_BESIDE = 32 << 20  # bytes: tokenizer, configs, memory; about
_ADAM = 2  # numbers that an optimizer keeps of each trained one; about


class CheckpointSizes(NamedTuple):
    """Bytes of the parts of a checkpoint; about.

    Args:
        weights (int): merged model, or what was trained; the averaged one with it.
        adapter (int): adapter in both formats, the averaged one with it.
        state (int): what resuming needs besides.
    """

    weights: int
    adapter: int
    state: int

    @property
    def whole(self) -> int:
        """Of a checkpoint that a run can go on from."""
        return self.weights + self.adapter + self.state + _BESIDE

    def run(
        self,
        *,
        epochs: int,
        keep_last_n: int | None,
        keep_best: bool,
        num_budgets: int,
    ) -> int:
        """Bytes of all checkpoints of a run.

        Args:
            epochs: that are left.
            keep_last_n: checkpoints that can be resumed; ``None``: the run keeps all.
            keep_best: whether the best weights are kept as well.
            num_budgets: of ``checkpoint_at_flops``.
        """
        inference = self.weights + self.adapter
        kept = (epochs + (2 if keep_best else 0)) * inference
        states = self.state * ((keep_last_n or 0) + 1)
        return kept + states + num_budgets * self.adapter + _BESIDE


def checkpoint_sizes(
    base: Iterable[Tensor],
    trained: Iterable[nn.Parameter],
    *,
    has_adapters: bool,
    adapter_only: bool,
    averaged: bool,
) -> CheckpointSizes:
    """What a checkpoint takes.

    Args:
        base (Iterable[Tensor]): weights of the base model, as its files have them.
        trained (Iterable[nn.Parameter]): what is trained, sharded or not.
        has_adapters (bool): whether those are adapters.
        adapter_only (bool): whether no merged model is written.
        averaged (bool): whether averages in float32 are written as well.

    Returns:
        CheckpointSizes: in bytes.
    """
    weights = 0 if adapter_only else sum(map(_bytes, base))
    trained = list(trained)
    own = sum(map(_bytes, trained))
    average = 4 * sum(p.shape.numel() for p in trained) if averaged else 0
    return CheckpointSizes(
        weights=weights * (2 if averaged else 1),
        adapter=2 * (own + average) if has_adapters else 0,
        state=_ADAM * own + (0 if has_adapters else own) + average,
    )


def require_space(folder: Path, sizes: CheckpointSizes, run: int) -> str | None:
    """Find out before a run starts whether its checkpoints have room.

    Args:
        folder: where they are written.
        sizes: of one checkpoint.
        run: bytes of all of them.

    Returns:
        A warning if the disk may fill up.

    Raises:
        OSError: if there is no room for one checkpoint.
    """
    free = free_bytes(folder)
    less = "save_adapter_weights_only=True or keep_last_n=2 take less"
    if free < sizes.whole:
        raise OSError(
            f"output_dir={folder}: a checkpoint takes about {readable(sizes.whole)}, and "
            f"{readable(free)} are free. Make room or choose another output_dir; {less}."
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
    """Whether a write that failed did so for lack of space.

    torch and safetensors do not say so: what is free decides.

    Args:
        error (Exception): what the write raised.
        folder (Path): where it wrote, with what it left.
        needed (int): bytes that it was to write.

    Returns:
        bool: whether it did.
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
