"""What a run leaves on the disk while its ranks start."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from omegaconf import OmegaConf

from erjepa.training.averaged import AveragedWeights
from erjepa.training.saving import RunCheckpoints
from tests.recipes.harness import on_ranks


def slow_checkpointer(output_dir):
    """Makes its folder, as torchtune's does; rank 1 looks for it after rank 0 is done."""
    scratch = Path(output_dir)
    scratch.mkdir(exist_ok=True)
    time.sleep(0.2 + 0.6 * dist.get_rank())
    assert scratch.is_dir(), "another rank removed the folder"
    return scratch


def test_no_rank_removes_a_folder_that_another_is_making(tmp_path):
    cfg = OmegaConf.create(
        dict(
            output_dir=str(tmp_path),
            resume_from_checkpoint=False,
            init_from=None,
            checkpoint_at_flops=None,
            checkpointer={"_component_": f"{__name__}.slow_checkpointer"},
            save_adapter_weights_only=True,
            keep_best=False,
            keep_last_n=None,
            resume_changes=None,
            epochs=1,
        )
    )

    def start():
        device = torch.device("cpu")
        averaged = AveragedWeights(None, device)
        RunCheckpoints(cfg, device, lambda path: None, averaged).close()

    on_ranks(start, 2)
    assert not (tmp_path / ".partial").exists()
