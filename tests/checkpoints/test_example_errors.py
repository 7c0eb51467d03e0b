"""The log of example errors continues where the checkpoint was written."""

import pytest
import torch.distributed as dist

from erjepa.checkpoints.example_errors import ExampleErrors, Visit, read_visits

VISITS = [
    Visit(1, 4, False, 0.5, 0.25),
    Visit(1, -(1 << 32), True, 1.5, 0.125),
    Visit(2, 4, True, 0.375, 0.0625),
]


@pytest.fixture(autouse=True)
def rank(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)


def test_what_is_logged_is_read(tmp_path):
    log = ExampleErrors(tmp_path)
    log.continue_after(0)
    log.log(VISITS)
    log.flush()
    assert list(read_visits(tmp_path / "example_errors.csv")) == VISITS


def test_what_a_killed_run_did_after_its_checkpoint_comes_again(tmp_path):
    path = tmp_path / "example_errors.csv"
    log = ExampleErrors(tmp_path)
    log.continue_after(0)
    log.log(VISITS)
    log.flush()
    path.write_text(path.read_text() + "3,7,1,0.")  # as a kill leaves it
    log = ExampleErrors(tmp_path)
    log.continue_after(1)
    log.log(VISITS[2:])
    log.flush()
    assert list(read_visits(path)) == VISITS
    fresh = ExampleErrors(tmp_path)
    fresh.continue_after(0)
    assert list(read_visits(path)) == []


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    log = ExampleErrors(tmp_path)
    log.continue_after(0)
    log.log(VISITS)
    log.flush()
    assert not list(tmp_path.iterdir())
