"""The campaign passes on the unmodified project, and finds planted defects."""

from itertools import count

import pytest

from erjepa.checkpoints import checkpoint, model_card
from erjepa.checkpoints.stored_memory import StoredMemory
from erjepa.datasets import paired
from erjepa.utils import folders
from tests.campaign import batches, cards, files, grids, inputs, memories, queries
from tests.campaign.attack import Attack, rng_of


def tries(prepare, folder, number):
    """The first ``number`` tries of an attack; what was lost."""
    attempt, lost = prepare(folder), []
    attack = Attack(prepare.__name__, number, 1, prepare)
    for i in range(number):
        scratch = folder / f"try_{i}"
        scratch.mkdir()
        try:
            attempt(rng_of(0, attack, i), scratch)
        except Exception as found:  # noqa: BLE001 - a fault is what is looked for
            lost.append(str(found))
    return lost


@pytest.mark.parametrize(
    ("prepare", "number"),
    [
        (files.checkpoints, 25),
        (inputs.configs, 8),
        (inputs.data_files, 40),
        (queries.numbers, 2),
        (queries.names, 2),
        (memories.copies, 2),
        (memories.checkpoints, 30),
        (memories.prunings, 20),
        (batches.batches, 60),
        (cards.cards, 5),
        (grids.names, 3),
        (grids.folders, 1),
        (grids.keys, 4),
        (grids.records, 20),
    ],
)
def test_nothing_is_lost(prepare, number, tmp_path):
    assert tries(prepare, tmp_path, number) == []


def test_damage_that_nobody_looks_for_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "damage", lambda *args: None)
    assert tries(files.checkpoints, tmp_path, 25)


def test_records_that_are_left_out_are_found(tmp_path, monkeypatch):
    read, numbers = paired.load_records, count()

    def with_gaps(*args, **kwargs):
        return [r for r in read(*args, **kwargs) if next(numbers) % 5]

    monkeypatch.setattr(paired, "load_records", with_gaps)
    assert any("pairs" in lost for lost in tries(inputs.data_files, tmp_path, 20))


def test_a_memory_that_is_not_checked_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(StoredMemory, "check", lambda *args: None)
    assert any("taken as" in lost for lost in tries(memories.checkpoints, tmp_path, 30))


def test_a_card_that_is_not_escaped_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(model_card, "markdown_code", lambda text: f"`{text}`")
    assert tries(cards.cards, tmp_path, 5)


def test_a_grid_that_follows_links_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_require_no_link", lambda *args: None)
    monkeypatch.setattr(folders, "_require_mark", lambda *args: None)
    assert tries(grids.folders, tmp_path, 6)
