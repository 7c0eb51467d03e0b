"""Count the tokens and FLOPs of an epoch of SFT, LLM-JEPA and ER-JEPA, without training.

    python -m tests.benchmarks.epoch_flops CONFIG RANKS [key=value ...]

Packs every step of the epoch as the recipe would; the model is on the meta device. ER-JEPA
replays one pair per new pair, drawn uniformly from the pairs seen before. Pairs that content
selection replays share more tokens, so its count is a little lower.
"""

import random
import sys

import torch
from torchtune.modules.peft import get_adapter_params, set_trainable_params

import erjepa.configs
from erjepa.datasets import Pair, StepSampler, predictor_token_ids
from erjepa.objective.flops import StepFlops
from erjepa.packing import PairCollator
from tests.benchmarks.timing import Row


def epoch_counts(cfg, num_ranks: int) -> list[Row]:
    """Counts of the first epoch under ``cfg`` on so many ranks."""
    with torch.device("meta"):
        decoder = cfg.model.build()
    set_trainable_params(decoder, get_adapter_params(decoder))
    count = StepFlops(decoder)
    tokenizer = cfg.tokenizer.build()
    dataset = cfg.dataset.build(tokenizer)
    pairs = [dataset[i] for i in range(len(dataset))]
    ids = predictor_token_ids(
        tokenizer,
        cfg.num_predictor_tokens,
        decoder.tok_embeddings.num_embeddings,
        cfg.predictor_tokens,
    )

    def collator(views: str) -> PairCollator:
        return PairCollator(
            views=views,
            predictor_ids=ids,
            row_length=cfg.row_length,
            trim=cfg.device == "cpu",
        )

    plain, shared = collator("none"), collator(cfg.views)
    totals = {method: [0, 0] for method in ("SFT", "LLM-JEPA", "ER-JEPA")}

    def add(method: str, collator: PairCollator, step: list[Pair]) -> None:
        for rank in range(num_ranks):
            if mine := step[rank::num_ranks]:
                batches = collator.split(mine, cfg.gradient_accumulation_steps)
                totals[method][0] += sum(batch.num_tokens for batch in batches)
                totals[method][1] += sum(map(count, batches))

    sampler = StepSampler(
        len(pairs),
        batch_size=num_ranks * cfg.batch_size,
        gradient_accumulation_steps=cfg.gradient_accumulation_steps,
        world_size=1,
        rank=0,
        seed=cfg.seed,
    )
    rng, seen = random.Random(0), []
    for step in sampler:
        new = [pairs[i] for i in step]
        add("SFT", plain, new)
        add("LLM-JEPA", shared, new)
        add("ER-JEPA", shared, new)
        if seen:
            chosen = rng.sample(seen, min(len(seen), len(new)))
            add("ER-JEPA", shared, [pairs[i] for i in chosen])
        seen += step
    return [
        row
        for method, (tokens, flops) in totals.items()
        for row in (
            Row(f"{method}: tokens of an epoch", tokens, ""),
            Row(f"{method}: operations of an epoch", flops, "FLOPs"),
        )
    ]


if __name__ == "__main__":
    cfg = erjepa.configs.load(sys.argv[1], sys.argv[3:])
    for row in epoch_counts(cfg, int(sys.argv[2])):
        print(f"{row.name:<34}{row.value:12.4g} {row.unit}")
