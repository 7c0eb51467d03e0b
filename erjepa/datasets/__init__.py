"""Pairs of source and target: records, chat templates, tokenized datasets, step plans."""

from erjepa.datasets.chat_template import ChatTemplate
from erjepa.datasets.gsm8k import gsm8k_dataset
from erjepa.datasets.nl_rx import nl_rx_dataset, synthetic_nl_rx_dataset
from erjepa.datasets.nq_open import nq_open_dataset
from erjepa.datasets.paired import PairedDataset, paired_dataset
from erjepa.datasets.pairs import Pair
from erjepa.datasets.predictor_tokens import predictor_token_ids
from erjepa.datasets.records import Record, load_records
from erjepa.datasets.sampler import StepSampler
from erjepa.datasets.spider import spider_dataset
from erjepa.datasets.split import Split, hold_out

__all__ = [
    "ChatTemplate",
    "Pair",
    "PairedDataset",
    "Record",
    "Split",
    "StepSampler",
    "gsm8k_dataset",
    "hold_out",
    "load_records",
    "nl_rx_dataset",
    "nq_open_dataset",
    "paired_dataset",
    "predictor_token_ids",
    "spider_dataset",
    "synthetic_nl_rx_dataset",
]
