"""All ranks read the memory that rank 0 verified; a chain of runs keeps a uniform sample."""

import shutil
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from erjepa.checkpoints import stored_memory
from erjepa.checkpoints.memory_file import write_memory
from erjepa.checkpoints.stored_memory import open_memory
from erjepa.replay import EpisodicReplay, ReplaySettings
from erjepa.training.run import inherited
from erjepa.training.run.inherited import InheritedMemories, open_on_all
from tests.harness.memories import DESCRIPTION, write_run
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


KEYS = ReplaySettings(
    capacity=10, retention="reservoir", selection="uniform", address="none"
)


@pytest.fixture
def alone(monkeypatch):
    """Memories are opened without ranks."""
    monkeypatch.setattr(
        inherited, "open_on_all", lambda path, key: open_memory(path, key)
    )


def memories_of(path):
    settings = SimpleNamespace(start_from=[path], **vars(KEYS))
    cfg = SimpleNamespace(replay=settings, continue_from=path)
    return InheritedMemories(cfg, "x", {path: path})


def inherit(earlier, seed):
    replay = EpisodicReplay(KEYS, embed_dim=8, seed=seed, reserved_slots=len(earlier))
    earlier.load_into(replay, seed)
    return replay


def write(replay, ids):
    segments = [([1], [], [1], [1], [1])] * len(ids)
    replay.write(ids, segments, None, torch.ones(len(ids)))


def test_pairs_that_do_not_fit_the_run_no_longer_count_as_offered(
    alone, tmp_path, monkeypatch
):
    """Otherwise later runs would keep too many of those that fit."""
    replay = EpisodicReplay(KEYS, embed_dim=8, seed=1)
    write(replay, torch.arange(30))
    write_memory(tmp_path, replay, DESCRIPTION)
    earlier, fitting = memories_of(tmp_path), torch.arange(0, 10, 2)
    monkeypatch.setattr(inherited, "slots_to_inherit", lambda *_: fitting)
    earlier.fit(SimpleNamespace())
    memory = inherit(earlier, seed=1).memory
    assert (len(memory), memory.state.seen) == (5, (15, 15))


def test_a_chain_of_reservoirs_keeps_every_pair_with_the_same_probability(
    alone, tmp_path
):
    """Months of different sizes and epochs, with the same seed in each month of a chain."""
    months, chains = ((30, 1), (6, 3), (30, 2), (60, 1), (30, 1)), 60
    counts = torch.zeros(len(months))
    for seed in range(chains):
        origins, folder = [], tmp_path
        for month, (size, epochs) in enumerate(months):
            replay = EpisodicReplay(KEYS, embed_dim=8, seed=seed)
            if month:
                earlier = memories_of(folder)
                replay, origins = inherit(earlier, seed), earlier.origins
            folder = tmp_path / f"{seed}_{month}"
            shuffling = torch.Generator().manual_seed(seed)
            for _ in range(epochs):
                write(replay, torch.randperm(size, generator=shuffling))
            about = {"origins": [*origins, str(month)], "inherited": len(origins)}
            write_memory(folder, replay, DESCRIPTION | about)
        last = inherit(memories_of(folder), seed)
        months_of = (last.memory.example_ids >> 32) + len(months)
        counts += months_of.bincount(minlength=len(months))
    sizes = torch.tensor([size for size, _ in months])
    share = sizes / sizes.sum()
    deviation = (chains * 10 * share * (1 - share)).sqrt()
    assert ((counts - chains * 10 * share) / deviation).abs().max() < 3
