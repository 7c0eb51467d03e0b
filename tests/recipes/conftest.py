"""Fixtures of the recipes' tests: short pairs, since most of these tests train, and logged texts."""

import logging

import pytest

from erjepa_recipe import lora_finetune_distributed_erjepa as recipe
from tests.harness.data import write_records

SHORT = {"words": 6, "letters": 12}


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """44 pairs: six steps of 8 an epoch, the last one of 4."""
    return write_records(tmp_path_factory.mktemp("data") / "train.jsonl", 44, **SHORT)


@pytest.fixture(scope="session")
def other_data(tmp_path_factory):
    """24 other pairs, for a run after another."""
    folder = tmp_path_factory.mktemp("other")
    return write_records(folder / "new.jsonl", 24, seed=9, **SHORT)


@pytest.fixture
def warned(monkeypatch):
    """The warnings that a run logs on rank 0, in a list that each forked rank fills for itself."""
    texts = []

    def log(logger, text, level=logging.INFO):
        texts.extend([text] * (level == logging.WARNING))

    monkeypatch.setattr("torchtune.utils.log_rank_zero", log)
    return texts


@pytest.fixture
def carried(monkeypatch):
    """The weights that a run says it carries on, in a list that each forked rank fills for itself."""
    texts = []

    def log_summary(*_, carried, device):
        texts.extend(carried)

    monkeypatch.setattr(recipe, "log_summary", log_summary)
    return texts
