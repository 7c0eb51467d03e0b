"""The device of a run, found out before a process group is formed."""

import os
import sys

import torch
from omegaconf import DictConfig
from torchtune import utils
from torchtune.training.precision import verify_bf16_support

_ON_A_CPU = "device=cpu dtype=fp32 row_length=null"

log = utils.get_logger("INFO")


def memory_of(device: torch.device) -> int:
    """Bytes of memory that a rank may count on.

    Args:
        device (torch.device): that of the rank.

    Returns:
        int: all of a GPU's; of a machine's a share for each of its ranks. ``sys.maxsize``
        where the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return sys.maxsize
    return total // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def run_device(cfg: DictConfig) -> torch.device:
    """The device that a config asks for.

    Args:
        cfg (DictConfig): config of a recipe; ``device: null`` is CUDA where there is any,
            else the CPU.

    Returns:
        torch.device: with the index of this rank.

    Raises:
        ValueError: if this machine has no such device, or too few for its ranks, or it
            cannot compute in ``dtype``; the message says what to set.
    """
    kind = (cfg.device or "cuda").partition(":")[0]
    if kind not in ("cuda", "cpu"):
        raise ValueError(
            f"device={cfg.device}: the recipes run on cuda and cpu. Set {_ON_A_CPU}"
        )
    if kind == "cpu" or (cfg.device is None and not torch.cuda.is_available()):
        first = os.environ.get("RANK", "0") == "0"
        if first and cfg.dtype == "bf16" and not _multiplies_bfloat16():
            log.warning(
                "dtype=bf16: this CPU has no instructions for bfloat16, and takes many "
                "times longer than with dtype=fp32"
            )
        return utils.get_device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(
            f"device={cfg.device}: torch {torch.__version__} finds no CUDA device on this "
            f"machine. Train on one that has a GPU, or set {_ON_A_CPU}"
        )
    local_rank, count = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if local_rank >= count:
        raise ValueError(
            f"device={cfg.device}: this machine has {count} CUDA devices, too few for a "
            f"rank each. Start {count} with --nproc_per_node, and set "
            "gradient_accumulation_steps for steps of as many pairs"
        )
    dtypes = (cfg.dtype, cfg.trainable_dtype)
    if "bf16" in dtypes and not verify_bf16_support():
        raise ValueError(
            f"dtype={cfg.dtype}: {torch.cuda.get_device_name()} cannot compute in "
            "bfloat16. Set dtype=fp32"
        )
    return utils.get_device(cfg.device)


def _multiplies_bfloat16() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
