"""Parameters of tests: devices, options of training, and a quick subset of many cases."""

from collections.abc import Collection, Iterable

import pytest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
# Options that have nothing to do with each other share a run.
RUNS = {
    "content": [
        "loss.distance=infonce",
        "gradient_accumulation_steps=2",
        "optimizer.fused=True",
        "validation.size=8",
        "validation.generate=4",
    ],
    "uniform, reservoir": [
        "replay.selection=uniform",
        "replay.retention=reservoir",
        "replay.address=none",
        "replay.score=lm",
        "replay.views=False",
        "replay.weight=auto",
        "model.lora_dropout=0.1",
    ],
    "hard, balanced": [
        "replay.selection=hard",
        "replay.retention=balanced",
        "replay.address=dense",
        "views=spans",
        "loss.variance_weight=1",
        "loss.sigreg_weight=1",
    ],
    "mixed": [
        "replay.selection=mixed",
        "replay.neighbor_order=round_robin",
        "views=standalone",
        "loss.direction=both",
        "num_predictor_tokens=2",
        "log_collapse=True",
    ],
    "prioritized": [
        "replay.selection=prioritized",
        "replay.on_revisit=append",
        "loss.distance=l2",
        "log_example_errors=True",
        "enable_activation_checkpointing=True",
        "enable_activation_offloading=True",
    ],
    "SFT": ["replay.weight=0", "loss.jepa_weight=0", "dtype=bf16"],
}


def some_of(names: Iterable[str], quick: Collection[str]) -> list:
    """Parameters of a test; all except the ``quick`` ones are marked slow."""
    names = list(names)
    assert set(quick) <= set(names), f"no such cases: {set(quick) - set(names)}"
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]
