"""What it costs to pack a step, to build its mask, and how full its rows are."""

import tempfile
from pathlib import Path

from torch.nn.attention.flex_attention import create_block_mask
from torchtune.models.llama3 import llama3_tokenizer

from erjepa.datasets import paired_dataset
from erjepa.packing import PairCollator, block_mask
from tests.benchmarks.device import DEVICE
from tests.benchmarks.setting import BATCH_SIZE, TINY, pairs_are, write_pairs
from tests.benchmarks.timing import Row, interleave, ratio

ACCUMULATION = 4


def benchmark(quick: bool) -> list[Row]:
    """Times for a micro-batch, and slots a token of steps packed together and apart."""
    with tempfile.TemporaryDirectory() as name:
        path = write_pairs(Path(name) / "pairs.jsonl", 2048)
        tokenizer = llama3_tokenizer(
            str(TINY / "tokenizer.model"), str(TINY / "special_tokens.json")
        )
        dataset = paired_dataset(tokenizer, source=str(path))
        pairs = [dataset[i] for i in range(len(dataset))]
    collator = PairCollator(predictor_ids=[0], row_length=512)
    batch = collator(pairs[:BATCH_SIZE]).to(DEVICE)
    mask = block_mask(batch.document, batch.branch)
    rows, length = batch.tokens.shape

    def by_torch() -> None:
        create_block_mask(mask.mask_mod, rows, None, length, length, device=DEVICE)

    times = interleave(
        {
            "collate": lambda: collator(pairs[:BATCH_SIZE]),
            "block mask": lambda: block_mask(batch.document, batch.branch),
            "create_block_mask": by_torch,
        },
        repeats=10 if quick else 50,
    )
    setting = f"{pairs_are()}, {BATCH_SIZE} pairs, {rows} rows of {length}"
    found = [
        times["collate"].row(f"packing, {setting}"),
        times["block mask"].row("block mask"),
        ratio(
            "torch's create_block_mask over ours",
            times["create_block_mask"],
            times["block mask"],
        ),
    ]
    size = BATCH_SIZE * ACCUMULATION
    steps = [pairs[i : i + size] for i in range(0, len(pairs) - size + 1, size)]
    for trim, kind in ((False, "fixed"), (True, "trimmed")):
        collator = PairCollator(predictor_ids=[0], row_length=512, trim=trim)
        apart = [
            collator(step[i : i + BATCH_SIZE])
            for step in steps
            for i in range(0, size, BATCH_SIZE)
        ]
        together = [b for step in steps for b in collator.split(step, ACCUMULATION)]
        for name, batches in (("apart", apart), ("together", together)):
            slots = sum(batch.tokens.numel() for batch in batches)
            tokens = sum(batch.num_tokens for batch in batches)
            found.append(
                Row(
                    f"slots a token, {kind} rows, micro-batches packed {name}",
                    slots / tokens,
                    "",
                    note=f"{ACCUMULATION} micro-batches of {BATCH_SIZE} pairs a step",
                )
            )
    return found
