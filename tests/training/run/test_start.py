"""Ranks start on one folder without disturbing each other, and not in a checkpoint."""

import time
from pathlib import Path

import pytest
import torch.distributed as dist

from erjepa.configs import load
from erjepa.training.run.start import build_checkpointer, require_fresh_output
from tests.harness.ranks import on_ranks


def slow_checkpointer(output_dir):
    """Makes its folder, as torchtune's does; rank 1 looks for it after rank 0 is done."""
    scratch = Path(output_dir)
    scratch.mkdir(exist_ok=True)
    time.sleep(0.2 + 0.6 * dist.get_rank())
    assert scratch.is_dir(), "another rank removed the folder"
    return scratch


def test_no_rank_removes_a_folder_that_another_is_making(tmp_path):
    checkpointer = f"checkpointer={__name__}.slow_checkpointer"
    cfg = load("tiny_synth", [f"output_dir={tmp_path}", checkpointer])

    on_ranks(lambda: build_checkpointer(cfg), 2)
    assert not (tmp_path / ".partial").exists()


def test_no_run_writes_into_a_checkpoint(tmp_path):
    """Its run would delete both."""
    (tmp_path / "epoch_0").mkdir()
    (tmp_path / "epoch_0" / "progress.json").write_text("{}")
    cfg = load("tiny_synth", [f"output_dir={tmp_path / 'epoch_0'}"])

    said = r"epoch_0 is a checkpoint, .*; "
    with pytest.raises(FileExistsError, match=f"{said}choose another output_dir$"):
        require_fresh_output(cfg, resume=False)
    with pytest.raises(FileExistsError, match=f"{said}set output_dir={tmp_path}$"):
        require_fresh_output(cfg, resume=True)
