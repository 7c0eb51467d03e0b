"""Datasets of (source, target) pairs: records, chat templates, tokenization, sampling.

The dataset builders of tasks, ``NAME_dataset`` in :mod:`erjepa.tasks`, can be imported from here.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from erjepa.datasets.build import (
    build_dataset,
    dataset_name,
    numbered,
    origin_labels,
    require_sources,
)
from erjepa.datasets.chat_template import ChatTemplate
from erjepa.datasets.mixture import Mixture
from erjepa.datasets.paired import PairedDataset, paired_dataset
from erjepa.datasets.pairs import Pair
from erjepa.datasets.predictor_tokens import predictor_token_ids
from erjepa.datasets.records import Record, load_records
from erjepa.datasets.sampler import StepSampler
from erjepa.datasets.split import Split, hold_out
from erjepa.datasets.tokenized import TokenizedPairs

__all__ = [
    "ChatTemplate",
    "Mixture",
    "Pair",
    "PairedDataset",
    "Record",
    "Split",
    "StepSampler",
    "TokenizedPairs",
    "build_dataset",
    "dataset_name",
    "hold_out",
    "load_records",
    "numbered",
    "origin_labels",
    "paired_dataset",
    "predictor_token_ids",
    "require_sources",
]


def __getattr__(name: str) -> Any:
    # Tasks import this package, so their builders are imported on first access.
    if name.endswith("_dataset"):
        for task in import_module("erjepa.tasks").task_names():
            module = f"erjepa.tasks.{task}.dataset"
            if find_spec(module) and hasattr(found := import_module(module), name):
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
