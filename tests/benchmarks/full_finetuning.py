"""Measure steps of full fine-tuning with FSDP2: float32 weights that compute in bfloat16."""

from torch.distributed.fsdp import FSDPModule

from tests.benchmarks.device import DEVICE
from tests.benchmarks.setting import BATCH_SIZE, fresh_recipe, stepper
from tests.benchmarks.timing import Row, interleave, peak_memory, reset_peak_memory
from tests.harness.runs import FULL_BUILDER


def benchmark(quick: bool) -> list[Row]:
    """Time of a step, its loss, and on a GPU the most memory allocated."""
    reset_peak_memory()
    with fresh_recipe(builder=FULL_BUILDER, row_length=2048) as recipe:
        assert isinstance(recipe._model, FSDPModule)
        run = stepper(recipe)
        losses: list[float] = []
        times = interleave(
            {"step": lambda: losses.append(float(run()["loss"]))},
            repeats=3 if quick else 8,
            warmup=2,
        )
    name = f"full fine-tuning, FSDP2 on one rank, {DEVICE.type}"
    return [
        times["step"].row(f"{name}: step", note=f"{BATCH_SIZE} new pairs"),
        Row(f"{name}: loss of the first step", losses[0], "nats"),
        Row(f"{name}: loss of the last step", losses[-1], "nats"),
        *peak_memory(name),
    ]
