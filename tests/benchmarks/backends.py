"""Compare the step time of SmolLM2-135M on torchtune's decoder and on transformers' model.

The steps alternate, with the same weights, pairs, prompts and adapters. Needs the model's folder,
which ``ERJEPA_SMOLLM2`` names.
"""

import tempfile
from pathlib import Path

import torch.distributed as dist

from erjepa.training.model.distributed import init_process_group
from erjepa_recipe.lora_finetune_distributed_erjepa import FinetuneRecipeERJEPA
from tests.benchmarks.device import DEVICE, ON_GPU, bfloat16_by
from tests.benchmarks.setting import pairs_are, stepper, write_pairs
from tests.benchmarks.timing import Row, interleave, ratio
from tests.harness.smollm2 import FOLDER, smollm2_config

DTYPE = "fp32" if not ON_GPU and bfloat16_by() == "conversion" else "bf16"
BACKENDS = ("torchtune", "transformers")


def benchmark(quick: bool) -> list[Row]:
    """Times of a step of ER-JEPA by both, and their ratio."""
    if not FOLDER.is_dir():
        print(f"skipped: ERJEPA_SMOLLM2={FOLDER} is no folder")
        return []
    if not dist.is_initialized():
        init_process_group(DEVICE, 600)
    with tempfile.TemporaryDirectory() as name:
        pairs = write_pairs(Path(name) / "pairs.jsonl", 256)
        steps = {}
        for backend in BACKENDS:
            overrides = {"output_dir": Path(name) / backend, "dataset.source": pairs}
            overrides["dtype"] = DTYPE
            if ON_GPU:
                overrides["row_length"] = 2048
            recipe = FinetuneRecipeERJEPA(smollm2_config(backend, rank=32, **overrides))
            recipe.setup()
            recipe._model.train()
            steps[backend] = stepper(recipe)
            steps[backend]()  # has nothing to replay
        times = interleave(steps, repeats=3 if quick else 9, warmup=1)
    setting = f"SmolLM2-135M in {DTYPE}, {pairs_are()}, 16 pairs a step"
    return [
        *(times[b].row(f"step of ER-JEPA by {b}, {setting}") for b in BACKENDS),
        ratio(
            "speed by transformers, of torchtune's",
            *map(times.get, BACKENDS),  # type: ignore[arg-type]
            target=">= 0.9",
        ),
    ]
