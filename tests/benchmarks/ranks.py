"""Compare the losses of several ranks with those of one, without dropout."""

import tempfile
from pathlib import Path

import torch

from tests.benchmarks.device import DEVICE, ON_GPU
from tests.benchmarks.start_to_end import difference, train
from tests.benchmarks.timing import Row

PAIRS = 16  # of a step
SETTINGS = ["dtype=fp32", "model.lora_dropout=0.0"]
SETTINGS += ["row_length=512"] if ON_GPU else []


def benchmark(quick: bool) -> list[Row]:
    """How far losses and gradients of several ranks are from those of one."""
    devices = torch.cuda.device_count() if ON_GPU else 2
    cuts = [ranks for ranks in (2, 4, 8) if ranks <= devices]
    if not cuts:
        return [Row("GPUs", devices, "", note="two or more are compared with one")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one = train(folder / "1", *SETTINGS, f"batch_size={PAIRS}")
        runs = {
            ranks: train(
                folder / str(ranks),
                *SETTINGS,
                f"batch_size={PAIRS // ranks}",
                ranks=ranks,
            )
            for ranks in cuts
        }
    return [
        difference(f"{ranks} ranks, {DEVICE.type}, and one", found, one, "<= 1e-4")
        for ranks, found in runs.items()
    ]
