"""Measure the time to pack a step and to build its mask, and how many tokens its pairs share.

    python -m tests.benchmarks.packing [TOKENIZER]

prints tokens per pair of the five datasets with a Llama 3 tokenizer file, for SFT and with views:
each pair alone, and in trees of 16 and of 64 pairs. It needs ``ERJEPA_DATA``.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

from torch.nn.attention.flex_attention import create_block_mask
from torchtune.models.llama3 import llama3_tokenizer

from erjepa.datasets import (
    paired_dataset,
)
from erjepa.packing import PairCollator, block_mask
from tests.benchmarks.device import DEVICE
from tests.benchmarks.setting import BATCH_SIZE, TINY, pairs_are, write_pairs
from tests.benchmarks.timing import Row, interleave, ratio
from tests.harness.data import DATASETS, tokens_per_pair

STEP = 64
ROW_LENGTH = 2048


def benchmark(quick: bool) -> list[Row]:
    """Times for a step, and tokens and slots of a pair, packed alone and together."""
    with tempfile.TemporaryDirectory() as name:
        path = write_pairs(Path(name) / "pairs.jsonl", 2048)
        tokenizer = llama3_tokenizer(
            str(TINY / "tokenizer.model"), str(TINY / "special_tokens.json")
        )
        dataset = paired_dataset(tokenizer, source=str(path))
        pairs = [dataset[i] for i in range(len(dataset))]
    fixed, trimmed = (
        PairCollator(predictor_ids=[0], row_length=ROW_LENGTH, attention=attention)
        for attention in ("flex", "dense")
    )
    batch = fixed(pairs[:STEP]).to(DEVICE)
    mask = block_mask(batch.end)
    rows, length = batch.tokens.shape

    def by_torch() -> None:
        create_block_mask(mask.mask_mod, rows, None, length, length, device=DEVICE)

    times = interleave(
        {
            "fixed": lambda: fixed(pairs[:STEP]),
            "trimmed": lambda: trimmed(pairs[:STEP]),
            "block mask": lambda: block_mask(batch.end),
            "create_block_mask": by_torch,
        },
        repeats=10 if quick else 50,
    )
    setting = f"{pairs_are()}, {STEP} pairs"
    found = [
        times["fixed"].row(
            f"packing, {setting}, {rows} rows of {length}", target="<= 5"
        ),
        times["trimmed"].row(f"packing, {setting}, trimmed rows", target="<= 5"),
        times["block mask"].row("block mask"),
        ratio(
            "torch's create_block_mask over ours",
            times["create_block_mask"],
            times["block mask"],
        ),
        Row("tokens a pair alone", sum(map(fixed.length, pairs)) / len(pairs), ""),
    ]
    for size in (BATCH_SIZE, STEP):
        steps = [pairs[i : i + size] for i in range(0, len(pairs) - size + 1, size)]
        for kind, collator in (("fixed", fixed), ("trimmed", trimmed)):
            batches = [collator(step) for step in steps]
            num_pairs = sum(batch.num_pairs for batch in batches)
            tokens = sum(batch.num_tokens for batch in batches) / num_pairs
            slots = sum(batch.tokens.numel() for batch in batches) / num_pairs
            found.append(
                Row(
                    f"tokens a pair, steps of {size}, {kind} rows",
                    tokens,
                    "",
                    note=f"in {slots:.1f} slots, "
                    f"{sum(len(b.tokens) for b in batches) / len(batches):.1f} rows",
                )
            )
    return found


def table(tokenizer_path: str) -> str:
    """Tokens per pair of the five datasets, SFT / JEPA."""
    tokenizer = llama3_tokenizer(tokenizer_path)
    lines = ["| | alone | trees of 16 pairs | trees of 64 pairs |"]
    lines.append("| --- | ---: | ---: | ---: |")
    for name, (build, folder, arguments) in DATASETS.items():
        source = Path(os.environ["ERJEPA_DATA"]) / folder
        dataset = build(tokenizer, source=str(source), **arguments)
        pairs = [dataset[i] for i in range(len(dataset))]
        random.Random(0).shuffle(pairs)
        cells = [
            " / ".join(
                f"{tokens_per_pair(pairs, v, n):.1f}" for v in ("none", "shared")
            )
            for n in (1, 16, 64)
        ]
        lines.append(" | ".join([f"| {name}", *cells]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(sys.argv[1]))
