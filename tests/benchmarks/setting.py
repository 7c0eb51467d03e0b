"""Models and pairs of the benchmarks: Llama-3.2-1B's shape on a GPU, else a smaller Llama.

The smaller model has a quarter of the width, LoRA rank and heads, four layers, and a vocabulary
for which the output projection takes the same fraction of the FLOPs. ``BENCHMARK_SIZE`` selects
another of the :data:`SHAPES`.
"""

import atexit
import functools
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import erjepa.models
from erjepa.tasks.nl_rx.grammar import generate_records
from erjepa.training.model.distributed import init_process_group
from erjepa.training.run.steps import Step
from erjepa_recipe.lora_finetune_distributed_erjepa import FinetuneRecipeERJEPA
from tests.benchmarks.device import DEVICE, ON_GPU
from tests.harness.data import write_jsonl
from tests.harness.models import write_base
from tests.harness.runs import BUILDER, small_config

SMALL = {
    "vocab_size": 8192,
    "num_layers": 4,
    "num_heads": 8,
    "num_kv_heads": 2,
    "embed_dim": 512,
    "intermediate_dim": 2048,
    "max_seq_len": 512,
    "scale_factor": 1,
}
LLAMA_3_2_1B = {
    "vocab_size": 128_256,
    "num_layers": 16,
    "num_heads": 32,
    "num_kv_heads": 8,
    "embed_dim": 2048,
    "intermediate_dim": 8192,
    "max_seq_len": 512,
    "scale_factor": 32,
}
TINY_SHAPE = SMALL | {
    "vocab_size": 1024,
    "num_layers": 2,
    "embed_dim": 64,
    "intermediate_dim": 128,
    "num_heads": 4,
}
SHAPES = {"1b": LLAMA_3_2_1B, "small": SMALL, "tiny": TINY_SHAPE}
SHAPE = SHAPES[os.environ.get("BENCHMARK_SIZE") or ("1b" if ON_GPU else "small")]
LORA_RANK = SHAPE["embed_dim"] // 4
BATCH_SIZE = 16
TINY = Path(erjepa.models.__path__[0]) / "tiny"
SYNTH = Path(os.environ.get("ERJEPA_DATA", "")) / "nl_rx" / "synth_train.jsonl"


def write_model(folder: Path, shape: dict[str, int] = SHAPE) -> Path:
    """A random model of ``shape``, in Hugging Face format, with the embedded tokenizer."""
    write_base(folder, **shape)
    for name in ("tokenizer.model", "special_tokens.json"):
        shutil.copy(TINY / name, folder / name)
    config = json.loads((TINY / "config.json").read_text())
    config.update(
        vocab_size=shape["vocab_size"],
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        num_key_value_heads=shape["num_kv_heads"],
        hidden_size=shape["embed_dim"],
        head_dim=shape["embed_dim"] // shape["num_heads"],
        intermediate_size=shape["intermediate_dim"],
        rope_theta=500000.0,
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_pairs(path: Path, count: int) -> Path:
    """The first pairs of NL-RX-SYNTH where ``ERJEPA_DATA`` has it, else of the grammar's."""
    if SYNTH.is_file():
        with SYNTH.open() as lines:
            path.write_text("".join(itertools.islice(lines, count)))
    else:
        write_jsonl(path, generate_records(count, split="train", seed=0))
    return path


def pairs_are() -> str:
    """Which pairs :func:`write_pairs` writes."""
    return "NL-RX-SYNTH" if SYNTH.is_file() else "the project's NL-RX grammar"


def build_recipe(
    model: Path,
    pairs: Path,
    output_dir: Path,
    *,
    shape: dict[str, int] = SHAPE,
    builder: str = BUILDER,
    **overrides: Any,
) -> FinetuneRecipeERJEPA:
    """The training recipe, set up on one rank in this process.

    Args:
        model (Path): from :func:`write_model`.
        pairs (Path): from :func:`write_pairs`.
        output_dir (Path): where it logs.
        shape (dict[str, int]): of the model; the LoRA rank is a quarter of its width.
        builder (str): of the model, with LoRA or without.
        **overrides (Any): config keys, with ``__`` for a dot.

    Returns:
        FinetuneRecipeERJEPA: ready to take steps.
    """
    if not dist.is_initialized():
        init_process_group(DEVICE, 600)
    rank = shape["embed_dim"] // 4
    settings = {
        "device": DEVICE.type,
        "model": builder,
        **{f"model__{name}": value for name, value in shape.items()},
        "model__lora_rank": rank,
        "model__lora_alpha": 2 * rank,
        "model__lora_dropout": 0.1,
        "dtype": "bf16",
        "row_length": 512,
        "optimizer__fused": True,
        "batch_size": BATCH_SIZE,
        **overrides,
    }
    recipe = FinetuneRecipeERJEPA(small_config(model, pairs, output_dir, **settings))
    recipe.setup()
    recipe._model.train()
    return recipe


@functools.cache
def shared_model() -> Path:
    """A model of ``SHAPE`` for all benchmarks of a process: writing Llama-3.2-1B takes long."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return write_model(folder / "model")


@contextmanager
def fresh_recipe(
    num_pairs: int = 512, **overrides: Any
) -> Iterator[FinetuneRecipeERJEPA]:
    """The same on the shared model and pairs of its own, whose files go when it does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield build_recipe(
            shared_model(),
            write_pairs(folder / "pairs.jsonl", num_pairs),
            folder / "out",
            **overrides,
        )


def stepper(recipe: FinetuneRecipeERJEPA) -> Callable[[], dict]:
    """A function that packs the next pairs and takes a training step, epoch after epoch."""

    def steps():
        for epoch in itertools.count():
            recipe._pairs.sampler.set_position(epoch)
            for batches in recipe._pairs.loader:
                yield recipe._train_step(Step(batches))

    iterator = steps()
    return lambda: next(iterator)


def threads() -> int:
    """Threads of every measured process."""
    return torch.get_num_threads()
