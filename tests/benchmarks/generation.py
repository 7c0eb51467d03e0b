"""Compare generation in batches with generation of one prompt at a time.

    python -m tests.benchmarks.generation [--quick]

Uses the embedded model with the test prompts and batches of an evaluation, on one core and on all
cores. Without ``--quick`` it also uses a random Llama of a hundred million parameters, which
generates 16 tokens per prompt.
"""

import os
import sys
import tempfile
from functools import partial

import torch
from torchtune import training
from torchtune.models.llama3_2 import llama3_2
from torchtune.modules import TransformerDecoder

import erjepa.configs
from erjepa.evaluation.generation import batches_of_like_length, generate_greedy
from tests.benchmarks.device import DEVICE, ON_GPU, where
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
    cfg = erjepa.configs.load("tiny_synth")
    tokenizer = cfg.tokenizer.build()
    dataset = cfg.eval_dataset.build(tokenizer)
    prompts = [dataset.prompt(i) for i in range(len(dataset))]
    size = cfg.eval_batch_size
    settings = {
        "max_new_tokens": cfg.max_new_tokens,
        "stop_tokens": tokenizer.stop_tokens,
    }
    repeats = 5 if quick else 9
    demo, threads = demo_model(cfg), torch.get_num_threads()
    rows = compare("demo", demo, prompts, size, settings, repeats=repeats)
    if not ON_GPU and threads < os.cpu_count():
        torch.set_num_threads(os.cpu_count())
        rows += compare("demo", demo, prompts, size, settings, repeats=repeats)
        torch.set_num_threads(threads)
    if not quick:
        torch.manual_seed(0)
        settings |= {"max_new_tokens": 16, "stop_tokens": []}
        model = llama3_2(**LARGER).eval()
        rows += compare(
            "100M parameters", model, prompts[:size], size, settings, repeats=3
        )
    return rows


def demo_model(cfg) -> TransformerDecoder:
    """The embedded model, with adapters as in training."""
    model = cfg.model.build()
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = cfg.checkpointer.build(output_dir=folder)
        base = checkpointer.load_checkpoint()[training.MODEL_KEY]
    model.load_state_dict(base, strict=False)
    return model.eval()


def evaluate(
    model: TransformerDecoder, prompts: list[list[int]], size: int, settings: dict
) -> None:
    """Generate for all ``prompts`` as the evaluation recipe does."""
    for batch in batches_of_like_length([*map(len, prompts)], size):
        generate_greedy(model, [prompts[i] for i in batch], **settings)


def compare(
    name: str,
    model: TransformerDecoder,
    prompts: list[list[int]],
    size: int,
    settings: dict,
    *,
    repeats: int,
) -> list[Row]:
    """Times of ``prompts`` in batches of ``size`` and, alone, of a few spread over them."""
    model = model.to(DEVICE)
    few = sorted(prompts, key=len)[:: len(prompts) // 12]
    times = interleave(
        {
            "batch": partial(evaluate, model, prompts, size, settings),
            "alone": partial(evaluate, model, few, 1, settings),
        },
        repeats=repeats,
    )
    batch = Times([s / len(prompts) for s in times["batch"].seconds])
    alone = Times([s / len(few) for s in times["alone"].seconds])
    note = f"{len(prompts)} prompts in batches of {size}"
    target = ">= 20" if ON_GPU else ">= 10" if name == "demo" else ""
    name = f"generation, {name}, {where()}"
    return [
        batch.row(f"{name}, a prompt in a batch", note=note),
        alone.row(f"{name}, a prompt alone"),
        ratio(f"{name}, alone / in a batch", alone, batch, target=target),
    ]


if __name__ == "__main__":
    for row in benchmark(quick="--quick" in sys.argv):
        print(row)
