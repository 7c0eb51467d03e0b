"""Prompts generated in a batch, and one at a time by the same function.

    python -m tests.benchmarks.generation [--quick]

The demo's model, test prompts and batch size; unless quick also a random Llama of a hundred
million parameters, whose texts all take 16 tokens.
"""

import sys
import tempfile
from functools import partial

import torch
from omegaconf import OmegaConf
from torchtune import config, training
from torchtune.models.llama3_2 import llama3_2
from torchtune.modules import TransformerDecoder

import erjepa.config
from erjepa.generation import generate_greedy
from tests.benchmarks.timing import Row, Times, interleave, ratio

# About the proportions of Llama-3.2-1B.
LARGER = {
    "vocab_size": 32_000,
    "num_layers": 12,
    "num_heads": 12,
    "num_kv_heads": 4,
    "embed_dim": 768,
    "intermediate_dim": 2048,
    "max_seq_len": 512,
    "scale_factor": 1,
}


def benchmark(quick: bool) -> list[Row]:
    """Milliseconds a prompt, in a batch and alone, and their ratio."""
    erjepa.config.prepare()
    cfg = OmegaConf.load(erjepa.config.config_path("tiny_synth"))
    tokenizer = config.instantiate(cfg.tokenizer)
    dataset = config.instantiate(cfg.eval_dataset, tokenizer)
    prompts = [dataset.prompt(i) for i in range(cfg.eval_batch_size)]
    settings = {
        "max_new_tokens": cfg.max_new_tokens,
        "stop_tokens": tokenizer.stop_tokens,
        "pad_id": tokenizer.pad_id,
    }
    model, repeats = demo_model(cfg), 5 if quick else 15
    rows = compare("demo", model, prompts, settings, repeats=repeats, target=">= 10")
    if not quick:
        torch.manual_seed(0)
        settings |= {"max_new_tokens": 16, "stop_tokens": []}
        model = llama3_2(**LARGER).eval()
        rows += compare("100M parameters", model, prompts, settings, repeats=3)
    return rows


def demo_model(cfg) -> TransformerDecoder:
    """The base model of the demo, with adapters as in training."""
    model = config.instantiate(cfg.model)
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = config.instantiate(cfg.checkpointer, output_dir=folder)
        base = checkpointer.load_checkpoint()[training.MODEL_KEY]
    model.load_state_dict(base, strict=False)
    return model.eval()


def compare(
    name: str,
    model: TransformerDecoder,
    prompts: list[list[int]],
    settings: dict,
    *,
    repeats: int,
    target: str = "",
) -> list[Row]:
    """Times of a batch of ``prompts`` and, alone, of a few of them spread over it."""
    few = prompts[:: len(prompts) // 8]
    times = interleave(
        {
            "batch": partial(generate_greedy, model, prompts, **settings),
            "alone": lambda: [generate_greedy(model, [p], **settings) for p in few],
        },
        repeats=repeats,
    )
    batch = Times([s / len(prompts) for s in times["batch"].seconds])
    alone = Times([s / len(few) for s in times["alone"].seconds])
    note = f"of {len(prompts)} prompts, {torch.get_num_threads()} threads"
    return [
        batch.row(f"generation, {name}, a prompt in a batch", note=note),
        alone.row(f"generation, {name}, a prompt alone"),
        ratio(f"generation, {name}, alone / in a batch", alone, batch, target=target),
    ]


if __name__ == "__main__":
    for row in benchmark(quick="--quick" in sys.argv):
        print(row)
