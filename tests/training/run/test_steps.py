"""Packing in worker processes: the same steps, from one worker for the whole run."""

from dataclasses import replace
from multiprocessing import active_children

import pytest
import torch
import torch.distributed as dist

from erjepa.configs import Stop
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.run.progress import RunProgress
from erjepa.training.run.steps import TrainingPairs
from tests.harness.runs import small_config


@pytest.fixture
def prepared(base, data, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    cfg = small_config(base, data, "unused", loss__jepa_every=2)
    return PreparedRun(cfg, torch.device("cpu"))


def packed_epochs(pairs):
    """The tokens of each step of two epochs, and the workers that packed each epoch."""
    epochs, workers, others = [], [], set(active_children())
    for epoch in range(2):
        pairs.sampler.set_position(epoch)
        epochs.append([[batch.tokens.tolist() for batch in s] for s in pairs.loader])
        workers.append({worker.pid for worker in {*active_children()} - others})
    return epochs, workers


def test_one_worker_packs_all_epochs(prepared):
    expected, none = packed_epochs(TrainingPairs(prepared))
    prepared.cfg = replace(prepared.cfg, num_workers=1)
    packed, workers = packed_epochs(TrainingPairs(prepared))
    assert packed == expected and packed[0] != packed[1]
    assert none == [set(), set()]
    assert workers[0] == workers[1] and len(workers[0]) == 1


def test_pairs_that_were_offered_after_steps_on_a_shorter_dataset(prepared):
    """Before its memory, a resumed run may train on another dataset."""
    pairs = TrainingPairs(prepared)  # whose steps with an odd number have no JEPA loss
    progress = RunProgress(3, pairs.steps_per_epoch, Stop())
    progress.epoch, progress.step_in_epoch = 1, 2
    progress.totals["steps"] = 5  # three of the first epoch
    pairs.sampler.set_position(1)
    _, second = list(pairs.sampler)[:2]
    assert pairs.offered(progress, steps_without=3).tolist() == sorted(second)


@pytest.mark.slow
def test_workers_may_be_spawned(prepared):
    """As on macOS and Windows, where there is no fork, or none that is safe."""
    cfg, packed = prepared.cfg, {}
    for context in ("spawn", None):
        prepared.cfg = replace(cfg, num_workers=int(context is not None))
        loader = TrainingPairs(prepared).loader
        if context is not None:
            loader.multiprocessing_context = context
        packed[context] = [batch.tokens.tolist() for step in loader for batch in step]
    assert packed["spawn"] == packed[None] and len(packed[None]) == 11
