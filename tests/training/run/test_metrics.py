"""The metrics and the progress bar of a run."""

import io
import logging
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from erjepa.configs import Stop, load
from erjepa.training.run.metrics import MetricsLog, step_metrics
from erjepa.training.run.progress import RunProgress
from erjepa.training.step.passes import PassResult


@pytest.fixture
def metrics_log(tmp_path, monkeypatch):
    """Of a run, on rank 0 or another."""

    def make(run, rank=0):
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        return MetricsLog(config(tmp_path), run, torch.device("cpu"))

    return make


def config(tmp_path):
    keys = {"output_dir": tmp_path, "metric_logger.log_dir": tmp_path}
    keys["log_every_n_steps"] = 10
    return load("tiny_synth", [f"{key}={value}" for key, value in keys.items()])


METRICS = {"loss": torch.tensor(15.0), "lm_loss": 1.0, "grad_norm": 0.5}
METRICS |= {"tokens_per_second_per_gpu": 1.0, "pairs_per_second": 1.0}


def go(log, run, **metrics):
    run.count(tokens=10, flops=100)
    run.advance(0.5)
    log.step({**METRICS, **metrics}, seconds=1.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_gradient_of_zero_is_said_once(rank, metrics_log, caplog):
    run = RunProgress(1, 10, Stop())
    log = metrics_log(run, rank)
    with caplog.at_level(logging.WARNING):
        for norm in (0.5, 0.0, 0.0):
            go(log, run, grad_norm=norm)
    log.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (rank == 0)
    assert not said or "exactly zero at step 2, at a loss of 15.0000" in said[0]


def test_one_bar_knows_where_the_run_ends(metrics_log):
    run = RunProgress(3, 4, Stop(flops=650))
    log = metrics_log(run)
    bar = log.start()
    assert (bar.n, bar.total) == (0, 12)
    seen = []
    while not run.is_over():
        go(log, run)
        seen.append((bar.n, bar.total))
        assert log.start() is bar
    assert seen == [(i, 7) for i in range(1, 8)]
    log.close()


def test_a_bar_goes_on_where_the_run_was(metrics_log):
    run = RunProgress(2, 4, Stop(steps=6))
    earlier = metrics_log(run)
    for _ in range(5):
        go(earlier, run)
    log = metrics_log(run)
    bar = log.start()
    assert (bar.n, bar.initial, bar.total) == (5, 5, 6)
    go(log, run, val_loss=0.25)
    assert bar.n == 6 and bar.desc == "epoch 1.50 of 2, loss 15.0000: "
    assert bar.postfix == "val_loss=0.2500"


@pytest.mark.parametrize(("terminal", "most"), [(True, 60), (False, 2)])
def test_a_log_file_is_spared_most_refreshes(metrics_log, monkeypatch, terminal, most):
    screen = io.StringIO()
    screen.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", screen)
    run = RunProgress(2, 10, Stop())
    log = metrics_log(run)
    with log.start():
        while not run.is_over():
            go(log, run, val_loss=0.25)
    refreshes = screen.getvalue().count("\r")
    assert (refreshes > 20) == terminal and refreshes <= most
    assert "epoch 2.00 of 2, loss 15.0000: 100%" in screen.getvalue()


def test_other_ranks_have_no_bar(metrics_log):
    assert metrics_log(RunProgress(1, 4, Stop()), 1).start().disable


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_cosine_with_another_pair_needs_another_pair(count, monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    views = torch.eye(2)[:count]
    new = PassResult(
        example_ids=torch.arange(2),
        loss=torch.tensor(1.0),
        lm=torch.ones(2),
        labels=torch.ones(2),
        jepa=torch.zeros(count),
        source=views,
        predicted=views[None],
        target=views[None],
        terms={},
    )
    origins = SimpleNamespace(metrics=lambda new, replayed: {})
    memory = SimpleNamespace(replay=None, origins=origins)
    run = RunProgress(1, 10, Stop())
    counts = {"tokens": 10, "flops": 100, "lr": 0.1, "grad_norm": 0.5}
    metrics = step_metrics(new, None, memory, run, **counts, log_collapse=False)
    cosines = {name: v.item() for name, v in metrics.items() if "cosine" in name}
    expected = {"cosine_paired": 1.0, "cosine_shuffled": 0.0}
    assert cosines == dict([*expected.items()][:count])
