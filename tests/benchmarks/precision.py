"""Measure time and memory of float32 adapters over a bfloat16 base."""

import tempfile
from pathlib import Path

from tests.benchmarks.setting import (
    BATCH_SIZE,
    build_recipe,
    pairs_are,
    shared_model,
    stepper,
    write_pairs,
)
from tests.benchmarks.timing import Row, interleave, ratio

PRECISIONS = {"float32": "fp32", "bfloat16": "null"}


def benchmark(quick: bool) -> list[Row]:
    """Times of an ER-JEPA step with adapters in either precision, their ratio, and bytes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = shared_model()
        pairs = write_pairs(folder / "pairs.jsonl", 512)
        recipes = {
            precision: build_recipe(
                model,
                pairs,
                folder / precision,
                trainable_dtype=key,
                replay__fill=True,
            )
            for precision, key in PRECISIONS.items()
        }
        steps = {precision: stepper(recipe) for precision, recipe in recipes.items()}
        for step in steps.values():
            step()  # nothing to replay yet
        times = interleave(steps, repeats=5 if quick else 25, warmup=2)
        held = {precision: _bytes(recipe) for precision, recipe in recipes.items()}
    setting = f"{pairs_are()}, {BATCH_SIZE} new and as many replayed pairs"
    return [
        *(
            times[precision].row(f"step, adapters in {precision}, {setting}")
            for precision in PRECISIONS
        ),
        ratio(
            "time, float32 over bfloat16",
            times["float32"],
            times["bfloat16"],
            target="<= 1.05",
        ),
        *(
            Row(
                f"adapters and optimizer in {precision}", held[precision] / 2**20, "MiB"
            )
            for precision in PRECISIONS
        ),
    ]


def _bytes(recipe) -> int:
    """Of what is trained and of its optimizer's states; gradients take as much as weights."""
    trained = [p for p in recipe._model.parameters() if p.requires_grad]
    states = (
        value
        for state in recipe._optimizer.state.values()
        for name, value in state.items()
        if name != "step"
    )
    return sum(p.nbytes for p in trained) + sum(value.nbytes for value in states)
