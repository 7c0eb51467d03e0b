"""The campaign passes an unharmed project, and finds what is planted."""

from itertools import count

import pytest

from erjepa.checkpoints import checkpoint
from erjepa.datasets import paired
from tests.campaign import files, inputs, queries
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
