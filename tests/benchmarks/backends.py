"""Compare the step time of SmolLM2-135M on torchtune's decoder and on transformers' model.

The latter also reads rows of one text each, as models that carry a state do. The steps alternate,
with the same weights, pairs, prompts and adapters. Needs the model's folder, which
``ERJEPA_SMOLLM2`` names.
"""

import tempfile
from pathlib import Path

import torch.distributed as dist

from erjepa.training.model.distributed import init_process_group
from erjepa.training.run.prepared import PreparedRun
from erjepa_recipe.lora_finetune_distributed_erjepa import FinetuneRecipeERJEPA
from tests.benchmarks.device import DEVICE, ON_GPU, bfloat16_by
from tests.benchmarks.setting import pairs_are, stepper, write_pairs
from tests.benchmarks.timing import Row, interleave, ratio
from tests.harness.smollm2 import FOLDER, smollm2_config

DTYPE = "fp32" if not ON_GPU and bfloat16_by() == "conversion" else "bf16"
ONE_TEXT = "transformers, a text per row"
VARIANTS = {"torchtune": "auto", "transformers": "auto", ONE_TEXT: "causal"}


def benchmark(quick: bool) -> list[Row]:
    """Times of a step of ER-JEPA by each, and their ratios."""
    if not FOLDER.is_dir():
        print(f"skipped: ERJEPA_SMOLLM2={FOLDER} is no folder")
        return []
    if not dist.is_initialized():
        init_process_group(DEVICE, 600)
    with tempfile.TemporaryDirectory() as name:
        pairs = write_pairs(Path(name) / "pairs.jsonl", 256)
        steps, sizes = {}, {}
        for variant, attention in VARIANTS.items():
            backend, *_ = variant.split(",")
            overrides = {"output_dir": Path(name) / variant, "dataset.source": pairs}
            overrides |= {"dtype": DTYPE, "attention": attention}
            if ON_GPU:
                overrides["row_length"] = 2048
            recipe = FinetuneRecipeERJEPA(smollm2_config(backend, rank=32, **overrides))
            recipe.setup()
            recipe._model.train()
            sizes[variant] = _sizes(recipe._prepared)
            steps[variant] = stepper(recipe)
            steps[variant]()  # has nothing to replay
        times = interleave(steps, repeats=3 if quick else 9, warmup=1)
    setting = f"SmolLM2-135M in {DTYPE}, {pairs_are()}, 16 pairs a step"
    return [
        *(times[v].row(f"step of ER-JEPA by {v}, {setting}") for v in VARIANTS),
        ratio(
            "speed by transformers, of torchtune's",
            times["torchtune"],
            times["transformers"],
            target=">= 0.9",
        ),
        ratio("time of rows of one text", times[ONE_TEXT], times["transformers"]),
        *(
            Row(f"tokens of rows of one text, {name}", one / packed, "")
            for (name, one), packed in zip(
                sizes[ONE_TEXT].items(), sizes["transformers"].values(), strict=True
            )
        ),
    ]


def _sizes(run: PreparedRun) -> dict[str, int]:
    """Tokens of the rows of all steps, with padding."""
    pairs = [run.dataset[i] for i in range(len(run.dataset))]
    collator, n = run.collators.new, run.cfg.batch_size
    steps = [pairs[i : i + n] for i in range(0, len(pairs), n)]
    return {
        name: sum(collate(step).tokens.numel() for step in steps)
        for name, collate in {
            "with views": collator,
            "without": collator.without_views(),
        }.items()
    }
