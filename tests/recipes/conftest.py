"""Pairs of the recipes' tests: shorter ones, since most of these tests train."""

import pytest

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
