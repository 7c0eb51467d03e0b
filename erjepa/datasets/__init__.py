"""Pairs of source and target: records, chat templates, tokenized datasets, step plans.

The builders of a task's pairs live with their task in :mod:`erjepa.tasks` and are found here
as well.
"""

from importlib import import_module
from typing import Any

from erjepa.datasets.chat_template import ChatTemplate
from erjepa.datasets.concatenated import (
    ConcatenatedPairs,
    Pairs,
    build_dataset,
)
from erjepa.datasets.mixture import Mixture
from erjepa.datasets.origins import origin_labels
from erjepa.datasets.paired import PairedDataset, paired_dataset
from erjepa.datasets.pairs import Pair, require_pairs
from erjepa.datasets.predictor_tokens import predictor_token_ids
from erjepa.datasets.records import Record, load_records
from erjepa.datasets.sampler import StepSampler
from erjepa.datasets.split import Split, hold_out
from erjepa.datasets.tokenized import TokenizedPairs

# Builder to its task. Tasks import this package, so they are imported when asked for.
_TASK_OF = {
    "gsm8k_dataset": "gsm8k",
    "nl_rx_dataset": "nl_rx",
    "nq_open_dataset": "nq_open",
    "spider_dataset": "spider",
    "synthetic_nl_rx_dataset": "nl_rx",
}

__all__ = [
    "ChatTemplate",
    "ConcatenatedPairs",
    "Mixture",
    "Pair",
    "PairedDataset",
    "Pairs",
    "Record",
    "Split",
    "StepSampler",
    "TokenizedPairs",
    "build_dataset",
    "hold_out",
    "load_records",
    "origin_labels",
    "paired_dataset",
    "predictor_token_ids",
    "require_pairs",
    *_TASK_OF,
]


def __getattr__(name: str) -> Any:
    if name in _TASK_OF:
        return getattr(import_module(f"erjepa.tasks.{_TASK_OF[name]}.dataset"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
