"""Print the table of docs/several_gpus.md: ``python -m tests.commands.doctor.table``."""

import torch

from erjepa.commands.doctor.checks import GIB, USED, longest_rows, rank_of
from erjepa.commands.doctor.memory import memory_parts
from erjepa.training.run.prepared import PreparedRun
from tests.harness.runs import make_config

MODELS = {
    "1B": ("llama3_2_1b_synth", "torchtune.models.llama3_2.llama3_2_1b"),
    "3B": ("llama3_2_3b_synth", "torchtune.models.llama3_2.llama3_2_3b"),
    "8B": ("llama3_1_8b_synth", "torchtune.models.llama3_1.llama3_1_8b"),
}
MACHINES = [(1, 24), (1, 80), (4, 24), (4, 80)]
KINDS = ("LoRA", "QLoRA", "full")


def overrides(model: str, kind: str) -> list[str]:
    """Of the config of a model, for a kind of training."""
    return {
        "LoRA": [],
        "QLoRA": ["model.quantize_base=True"],
        "full": [f"model={MODELS[model][1]}"],
    }[kind]


def needed(
    model: str, kind: str, ranks: int, size: int, *, checkpointing: bool
) -> float:
    """GiB of each GPU in a step of 16 pairs."""
    settings = [
        *overrides(model, kind),
        f"gradient_accumulation_steps={4 // ranks}",
        f"enable_activation_checkpointing={checkpointing}",
    ]
    with rank_of(ranks):
        cfg = make_config(settings, MODELS[model][0])
        run = PreparedRun(cfg, torch.device("cuda"), "flex")
        parts = memory_parts(run, longest_rows(run).largest, size * GIB)
    return sum(parts.values()) / GIB


def row(model: str, kind: str) -> str:
    """A line of the table."""
    cells = [cell(model, kind, ranks, size) for ranks, size in MACHINES]
    return f"| {model} | {kind} | {' | '.join(cells)} |"


def cell(model: str, kind: str, ranks: int, size: int) -> str:
    """What a step takes, with activation checkpointing only where it is needed."""
    plain = needed(model, kind, ranks, size, checkpointing=False)
    if plain <= USED * size:
        return f"{plain:.1f}"
    less = needed(model, kind, ranks, size, checkpointing=True)
    return f"{less:.1f} *" if less <= USED * size else f"no: {less:.1f}"


if __name__ == "__main__":
    heads = [f"{ranks} × {size} GiB" for ranks, size in MACHINES]
    print(f"| model | training | {' | '.join(heads)} |")
    print("| --- | --- |" + " ---: |" * len(heads))
    for model in MODELS:
        for kind in KINDS:
            print(row(model, kind), flush=True)
