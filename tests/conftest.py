"""Fixtures: a random base model, and small files of pairs."""

import gc
import json
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests fork; OpenMP pools do not survive
os.environ["TIKTOKEN_CACHE_DIR"] = ""  # tokenizers are made anew at the same paths

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from torchtune.models.llama3 import llama3_tokenizer
from torchtune.models.qwen2_5 import qwen2_5_tokenizer

from erjepa.tasks.nl_rx.grammar import generate_pairs
from tests.harness.data import tokenizer_file, write_records
from tests.harness.models import write_base

torch.set_num_threads(1)
os.fsync = lambda file: None  # tests kill processes, not machines


def pytest_collection_finish(session):
    """Leave what is imported to itself: collecting it would copy it in every forked rank.

    The demo's grammar takes a third of a second, which every rank that draws pairs from it would
    spend again.
    """
    generate_pairs(1, split="train")
    generate_pairs(1, split="test")
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Tests on CUDA run alone: a process that has used it cannot fork, as others do."""
    if config.option.markexpr != "cuda":
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="pytest -m cuda, on a GPU"))


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def deep_base(tmp_path_factory) -> Path:
    """Of two layers, where it matters that there are several."""
    return write_base(tmp_path_factory.mktemp("deep_base"), num_layers=2)


@pytest.fixture(scope="session")
def tokenizer(base):
    """Of the base model: one token a byte."""
    return llama3_tokenizer(
        str(base / "tokenizer.model"),
        special_tokens_path=str(base / "special_tokens.json"),
    )


@pytest.fixture(scope="session")
def llama3():
    return llama3_tokenizer(str(tokenizer_file()))


@pytest.fixture(scope="session")
def qwen(tmp_path_factory):
    """torchtune's ChatML tokenizer, over a vocabulary of bytes."""
    folder = tmp_path_factory.mktemp("qwen")
    characters = {c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}
    (folder / "vocab.json").write_text(json.dumps(characters))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    paths = (str(folder / name) for name in ("vocab.json", "merges.txt"))
    return qwen2_5_tokenizer(*paths, max_seq_len=None)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """44 pairs: six steps of 8 an epoch, the last one of 4."""
    return write_records(tmp_path_factory.mktemp("data") / "train.jsonl", 44)


@pytest.fixture(scope="session")
def other_data(tmp_path_factory) -> Path:
    """24 other pairs, for a run after another."""
    return write_records(tmp_path_factory.mktemp("other") / "new.jsonl", 24, seed=9)
