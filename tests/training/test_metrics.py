"""What the log of a run says of its steps."""

import logging

import pytest
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from tqdm import tqdm

from erjepa.training.metrics import MetricsLog


@pytest.mark.parametrize("rank", [0, 1])
def test_a_gradient_of_zero_is_said_once(rank, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    cfg = OmegaConf.create(
        {
            "output_dir": str(tmp_path),
            "log_every_n_steps": 10,
            "log_peak_memory_stats": False,
            "metric_logger": {
                "_component_": "torchtune.training.metric_logging.DiskLogger",
                "log_dir": str(tmp_path),
            },
        }
    )
    log = MetricsLog(cfg, torch.device("cpu"))
    metrics = {"loss": torch.tensor(15.0), "lm_loss": 1.0}
    with tqdm(disable=True) as bar, caplog.at_level(logging.WARNING):
        for step, norm in enumerate([0.5, 0.0, 0.0], start=1):
            log.step(
                {**metrics, "grad_norm": norm}, epoch=0, step=step, seconds=1.0, bar=bar
            )
    log.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (rank == 0)
    assert not said or "exactly zero at step 2, at a loss of 15.0000" in said[0]
