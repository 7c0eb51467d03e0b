"""The device of the benchmarks: ``BENCHMARK_DEVICE``, or the GPU if there is one, or the CPU."""

import os
from pathlib import Path

import torch

DEVICE = torch.device(
    os.environ.get("BENCHMARK_DEVICE")
    or ("cuda" if torch.cuda.is_available() else "cpu")
)
ON_GPU = DEVICE.type == "cuda"


def synchronize() -> None:
    """Wait for what the GPU has been given to do."""
    if ON_GPU:
        torch.cuda.synchronize()


def where() -> str:
    """What a time was taken on, for notes."""
    threads = torch.get_num_threads()
    return "GPU" if ON_GPU else f"{threads} thread{'s' if threads > 1 else ''}"


def bfloat16_by() -> str:
    """What multiplies bfloat16 matrices on this CPU: AMX does three to four times as fast as
    AVX-512, so all else weighs more beside it.
    """
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.is_file() else []
    kinds = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512"}
    return next((name for flag, name in kinds.items() if flag in flags), "conversion")
