"""Pairs of source and target: records, chat templates, tokenized datasets, step plans."""

from erjepa.datasets.chat_template import ChatTemplate
from erjepa.datasets.nl_rx import nl_rx_dataset, synthetic_nl_rx_dataset
from erjepa.datasets.paired import PairedDataset, paired_dataset
from erjepa.datasets.pairs import Pair
from erjepa.datasets.predictor_tokens import predictor_token_ids
from erjepa.datasets.records import Record, load_records
from erjepa.datasets.sampler import StepSampler

__all__ = [
    "ChatTemplate",
    "Pair",
    "PairedDataset",
    "Record",
    "StepSampler",
    "load_records",
    "nl_rx_dataset",
    "paired_dataset",
    "predictor_token_ids",
    "synthetic_nl_rx_dataset",
]
