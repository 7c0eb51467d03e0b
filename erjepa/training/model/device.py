"""The device of a run and its attention implementation, checked before anything is loaded."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from torchtune import utils

from erjepa.configs import Config
from erjepa.packing import Attention

_ON_A_CPU = "device=cpu dtype=fp32 row_length=null"
_CPU_INFO = Path("/proc/cpuinfo")  # of Linux
_BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}  # bf16: of ARM

log = utils.get_logger("INFO")


def memory_of(device: torch.device) -> int:
    """Return the bytes of memory available to a rank: all of its GPU's or, on a CPU, the machine's
    divided by its number of ranks; ``sys.maxsize`` if unknown.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return sys.maxsize
    return total // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def device_of(cfg: Config) -> torch.device:
    """Return the device of the config, with this rank's index; ``device: null`` is CUDA if
    available, else the CPU.
    """
    default = "cuda" if torch.cuda.is_available() else "cpu"
    return utils.get_device(cfg.device or default)


def run_device(cfg: Config) -> torch.device:
    """Return :func:`device_of` a run, once it is known to suffice.

    Raises:
        ValueError: if this machine lacks the device, or has fewer than its ranks, or it does not
            support ``dtype`` or ``compile``; the message says what to set.
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
        return device_of(cfg)
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
            "gradient_accumulation_steps to keep the number of pairs per step"
        )
    # By default also True for a GPU that emulates it.
    has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    if cfg.dtype == "bf16" and not has_bfloat16:
        raise ValueError(
            f"dtype={cfg.dtype}: {torch.cuda.get_device_name()} cannot compute in "
            "bfloat16. Set dtype=fp32"
        )
    if cfg.compile and (obstacle := compiler_obstacle()):
        raise ValueError(f"compile=True: {obstacle}. Or set compile=False")
    return device_of(cfg)


def attention_of(cfg: Config, device: torch.device) -> Attention:
    """Return the key ``attention``, or ``flex`` or ``dense``, which ``auto`` selects on ``device``.

    Raises:
        ValueError: if ``attention`` is ``flex`` and cannot run.
    """
    if cfg.attention in ("dense", "causal"):
        return cfg.attention
    if obstacle := flex_obstacle(device):
        if cfg.attention == "flex":
            raise ValueError(f"attention=flex: {obstacle}. Or set attention=dense")
        if device.type == "cuda":
            utils.log_rank_zero(log, f"attention=auto takes a dense mask: {obstacle}.")
        return "dense"
    return "flex"


def flex_obstacle(device: torch.device) -> str | None:
    """Return why FlexAttention cannot run on ``device``, or ``None`` if it can."""
    if device.type != "cuda":
        return "FlexAttention needs CUDA"
    if torch.cuda.get_device_capability(device) < (8, 0):
        name = torch.cuda.get_device_name(device)
        return (
            f"compiled FlexAttention needs compute capability 8.0, more than {name} has"
        )
    return compiler_obstacle()


@functools.cache
def compiler_obstacle() -> str | None:
    """Return why Triton cannot build kernels on this machine, or ``None`` if it can.

    Triton compiles a launcher for each kernel with ``CC``, gcc or clang, and needs ``Python.h``.
    """
    if importlib.util.find_spec("triton") is None:
        return "torch builds kernels with Triton, which is absent; pip install triton"
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "Triton needs a C compiler; install gcc, or name one in CC"
    headers = sysconfig.get_path("include", "posix_prefix")
    command = [compiler, "-fsyntax-only", "-x", "c", "-I", headers, "-"]
    try:
        subprocess.run(
            command, input=b"#include <Python.h>", check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return (
            f"Triton needs Python.h, which {compiler} does not find in {headers}; install "
            "gcc and Python's headers (python3-dev)"
        )
    return None


def _multiplies_bfloat16() -> bool:
    # Not torch's check for oneDNN, which also accepts CPUs on which oneDNN emulates bfloat16.
    flags = _CPU_INFO.read_text().split() if _CPU_INFO.exists() else []
    return not _BFLOAT16_FLAGS.isdisjoint(flags)
