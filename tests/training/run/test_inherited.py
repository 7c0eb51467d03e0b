"""All ranks read the memory that rank 0 verified."""

import shutil

import pytest
import torch.distributed as dist

from erjepa.checkpoints import stored_memory
from erjepa.training.run.inherited import open_on_all
from tests.harness.memories import write_run
from tests.harness.ranks import on_ranks


def test_ranks_open_one_memory_though_it_is_pruned_for_some(tmp_path):
    write_run(tmp_path, "epoch_0_step_2", "epoch_0_step_4")
    opened = stored_memory.open_regular

    def prune_first(path):
        if (tmp_path / "epoch_0_step_4").exists():
            write_run(tmp_path, "epoch_0_step_6")
            shutil.rmtree(tmp_path / "epoch_0_step_4")
        return opened(path)

    def open_it():
        if dist.get_rank() == 1:
            stored_memory.open_regular = prune_first
        return open_on_all(tmp_path, "key").folder.parent.name

    assert on_ranks(open_it, 2) == ["epoch_0_step_6"] * 2


def test_what_rank_0_finds_wrong_ends_all(tmp_path):
    write_run(tmp_path, "epoch_0", "epoch_1")
    slots = tmp_path / "epoch_1" / "memory" / "slots.safetensors"
    slots.write_bytes(slots.read_bytes()[:-1] + b"x")

    def message():
        with pytest.raises(ValueError) as error:
            open_on_all(tmp_path, "replay.init_from")
        return str(error.value)

    first, second = on_ranks(message, 2)
    assert first == second and "slots.safetensors is damaged" in first
    assert first.endswith(f"name its checkpoint: {tmp_path / 'epoch_0'}")
