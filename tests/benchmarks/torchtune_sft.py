"""Compare steps of torchtune's LoRA SFT with steps of the recipe as SFT, LLM-JEPA and ER-JEPA.

torchtune's step is that of its LoRA recipes: its model, padded collation, chunked cross-entropy,
gradient clipping, optimizer and schedule. On a CPU most of its time goes into copies of the output
projection for each chunk, so it is also measured with a single chunk. All steps use the same pairs
and alternate in one process.
"""

import copy
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchtune.data import padded_collate_sft
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.training import scale_grads
from torchtune.training.lr_schedulers import get_cosine_schedule_with_warmup

from erjepa.training.model.adapter_layers import QuickDropout
from tests.benchmarks.device import DEVICE
from tests.benchmarks.setting import (
    BATCH_SIZE,
    build_recipe,
    pairs_are,
    shared_model,
    stepper,
    write_pairs,
)
from tests.benchmarks.timing import Row, interleave, ratio

NUM_PAIRS = 512
TORCHTUNE = {"torchtune": 8, "torchtune, one chunk": 1}  # 8 is its default
MODES = {
    "SFT": {"replay__weight": 0, "loss__jepa_weight": 0},
    "LLM-JEPA": {"replay__weight": 0},
    # As many replayed pairs as new ones, and no two alike, which would be computed once.
    "ER-JEPA": {"replay__neighbors": 64},
}


def benchmark(quick: bool) -> list[Row]:
    """Times of a step, their ratios, and the token slots that explain them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = shared_model()
        pairs = write_pairs(folder / "pairs.jsonl", NUM_PAIRS)
        recipes = {
            mode: build_recipe(model, pairs, folder / mode, **settings)
            for mode, settings in MODES.items()
        }
        slots: dict[str, list[tuple[int, int]]] = {name: [] for name in recipes}
        for mode, recipe in recipes.items():
            record_slots(recipe, slots[mode])
        steps = {mode: stepper(recipe) for mode, recipe in recipes.items()}
        for name, chunks in TORCHTUNE.items():
            steps[name] = torchtune_stepper(name, chunks, recipes["SFT"], slots)
        for step in steps.values():
            step()  # the first one of ER-JEPA has nothing to replay
        for recorded in slots.values():
            recorded.clear()
        repeats = 3 if quick else 9
        times = interleave(steps, repeats=repeats, warmup=1)

    def note(mode: str) -> str:
        real, all_slots = map(sum, zip(*slots[mode], strict=True))
        pairs_seen = BATCH_SIZE * (repeats + 1)
        return f"{real / pairs_seen:.1f} tokens in {all_slots / pairs_seen:.1f} slots a pair"

    setting = f"{pairs_are()}, {BATCH_SIZE} pairs a step"
    return [
        *(
            times[mode].row(f"step of {mode}, {setting}", note=note(mode))
            for mode in (*TORCHTUNE, *MODES)
        ),
        ratio("torchtune over SFT", times["torchtune"], times["SFT"]),
        ratio(
            "torchtune, one chunk over SFT",
            times["torchtune, one chunk"],
            times["SFT"],
            target=">= 1.5",
        ),
        ratio("LLM-JEPA over SFT", times["LLM-JEPA"], times["SFT"], target="<= 1.5"),
        ratio("ER-JEPA over SFT", times["ER-JEPA"], times["SFT"], target="<= 2.9"),
    ]


def record_slots(recipe, slots: list[tuple[int, int]]) -> None:
    """Note tokens and slots of every micro-batch that the recipe's model reads."""
    recipe._model.register_forward_pre_hook(
        lambda model, batches: slots.extend(
            (batch.num_tokens, batch.tokens.numel()) for batch in batches
        )
    )


def torchtune_stepper(
    name: str, chunks: int, recipe, slots: dict[str, list[tuple[int, int]]]
) -> Callable[[], float]:
    """A function that takes the next step of torchtune's LoRA SFT on the recipe's pairs."""
    decoder = copy.deepcopy(recipe._model.decoder)
    for module in decoder.modules():
        if isinstance(dropout := getattr(module, "dropout", None), QuickDropout):
            module.dropout = torch.nn.Dropout(dropout.p)  # as torchtune has it
    slots[name] = []
    loss_fn = CEWithChunkedOutputLoss(num_output_chunks=chunks)
    decoder.set_num_output_chunks(loss_fn.num_output_chunks)
    trained = [p for p in decoder.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.0, fused=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, 10_000)
    collator = recipe._prepared.collators.new
    examples = [
        {
            "tokens": [*pair.source, *pair.bridge, *pair.target],
            "labels": [
                *[loss_fn.ignore_index] * (len(pair.source) + len(pair.bridge)),
                *pair.target,
            ],
        }
        for pair in recipe._prepared.dataset
    ]
    loader = DataLoader(
        examples,
        batch_size=BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        collate_fn=lambda batch: padded_collate_sft(
            batch, padding_idx=collator.pad_id, ignore_idx=loss_fn.ignore_index
        ),
        generator=torch.Generator().manual_seed(0),
    )
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def step() -> float:
        batch = next(batches)
        slots[name].append(
            (int((batch["tokens"] != collator.pad_id).sum()), batch["tokens"].numel())
        )
        tokens, labels = batch["tokens"].to(DEVICE), batch["labels"].to(DEVICE)
        num_tokens = (labels != loss_fn.ignore_index).sum()
        padding = labels.new_full((len(labels), 1), loss_fn.ignore_index)
        labels = torch.hstack((labels[..., 1:], padding))
        loss = loss_fn(decoder(tokens), labels) * num_tokens
        loss.backward()
        scale_grads(decoder, 1 / num_tokens)
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        return loss.item()

    return step
