"""Time training, saving, resuming and scoring of the embedded model, about a minute in all."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from erjepa.studies.training_log import read_training_log
from erjepa.utils.files import SUMMARY
from erjepa.utils.summary import read_summary
from tests.benchmarks.device import DEVICE, ON_GPU
from tests.benchmarks.timing import Row

STEPS = 4
# On a GPU as its users train: in bfloat16, with FlexAttention.
SETTINGS = ["dtype=bf16", "row_length=512", "attention=flex"] if ON_GPU else []


def tune_run(recipe: str, output_dir: Path, *overrides: str, ranks: int = 1) -> None:
    tune = Path(sys.executable).parent / "tune"
    command = [tune, "run", "--nproc_per_node", str(ranks), recipe]
    command += ["--config", "tiny_synth", f"output_dir={output_dir}", *overrides]
    threads = max(1, (os.cpu_count() or 1) // ranks)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    subprocess.run(command, env=environment, check=True)


def train(
    output_dir: Path, *overrides: str, ranks: int = 1
) -> dict[int, dict[str, float]]:
    """Train the embedded model on some pairs; its metrics by step."""
    common = [f"device={DEVICE.type}", "dataset.size=200", f"stop.steps={STEPS}"]
    tune_run("erjepa_recipe", output_dir, *common, *overrides, ranks=ranks)
    return read_training_log(output_dir / "logs" / "metrics.txt")


def benchmark(quick: bool) -> list[Row]:
    """Seconds of each part, and how far a resumed run's losses are from an unbroken one's."""
    seconds = {}

    def timed(part, function, *args, **kwargs):
        start = time.perf_counter()
        result = function(*args, **kwargs)
        seconds[part] = time.perf_counter() - start
        return result

    with tempfile.TemporaryDirectory() as name:
        whole, broken = Path(name) / "whole", Path(name) / "broken"
        expected = timed("training, unbroken", train, whole, *SETTINGS)
        half = f"stop.steps={STEPS // 2}"
        timed("training, first half", train, broken, *SETTINGS, half)
        resume = "resume_from_checkpoint=True"
        found = timed("training, resumed", train, broken, *SETTINGS, resume)
        score = [f"device={DEVICE.type}", *SETTINGS, "eval_dataset.size=40"]
        score += ["alignment=True"] if ON_GPU else []
        timed("scoring", tune_run, "erjepa_eval", broken, *score)
        (summary,) = broken.glob(f"evaluation/*/{SUMMARY}")
        accuracy = read_summary(summary.parent).accuracy
    assert len(found) == len(expected) == STEPS
    return [
        *(
            Row(f"{part}, {DEVICE.type}", value, "s", note="its start included")
            for part, value in seconds.items()
        ),
        Row(f"examples scored right, {DEVICE.type}", 100 * accuracy, "%"),
        difference("losses of a resumed run", found, expected, "0 on a CPU"),
    ]


def difference(name: str, found: dict, expected: dict, target: str) -> Row:
    """The largest relative difference of losses and gradients of two runs, step by step."""
    largest = max(
        abs(found[step][metric] / metrics[metric] - 1)
        for step, metrics in expected.items()
        for metric in ("loss", "grad_norm")
    )
    return Row(f"{name}, largest relative difference", largest, "", target=target)
