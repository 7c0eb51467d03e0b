"""Losses, gradients and memory do not depend on how a step is divided.

One rank with a micro-batch of 8 pairs equals any division of the same 8 into ranks, micro-batches
and pairs, at each of 8 steps; the last step of an epoch, the sixth, has 4 pairs. Tokens and FLOPs count what
is computed, so they decrease as more pairs share a row.
"""

import pytest
import torch
import torch.distributed as dist

from erjepa.replay import EpisodicReplay
from erjepa.training.run import start
from erjepa.training.run.steps import TrainingPairs
from tests.harness.runs import (
    assert_close_logs,
    read_metrics,
    slots_of,
    small_config,
    train,
)

# (ranks, batch_size, gradient_accumulation_steps), all of 8 pairs a step
CUTS = [(1, 2, 4), (1, 4, 2), (2, 4, 1), (2, 1, 4), (4, 2, 1), (4, 1, 2)]


@pytest.fixture(scope="module")
def base(deep_base):
    return deep_base


def run(base, data, output_dir, world_size, batch_size, accumulation, **overrides):
    overrides = {
        "replay__capacity": 30,
        "replay__budget": 6,
        "batch_size": batch_size,
        "gradient_accumulation_steps": accumulation,
        **overrides,
    }
    cfg = small_config(base, data, output_dir, **overrides)
    return train(cfg, world_size, slots_of)


@pytest.mark.parametrize(
    ("selection", "budget", "cuts"),
    [
        ("content", 3, [CUTS[3], CUTS[5]]),
        pytest.param("content", 3, [*CUTS[::2], CUTS[1]], marks=pytest.mark.slow),
        pytest.param("uniform", 3, CUTS, marks=pytest.mark.slow),
        pytest.param("hard", 3, CUTS, marks=pytest.mark.slow),
        pytest.param("content", 6, CUTS[4:5], marks=pytest.mark.slow),
        pytest.param("uniform", 6, CUTS[4:5], marks=pytest.mark.slow),
        pytest.param("hard", 6, CUTS[4:5], marks=pytest.mark.slow),
    ],
)
def test_every_cut_of_a_step_gives_the_same_run(
    base, data, tmp_path, selection, budget, cuts
):
    # With a budget of 3, some of 4 ranks have nothing to replay.
    settings = {"replay__selection": selection, "replay__budget": budget}
    settings["stop__steps"] = 8  # two of the second epoch
    (memory,) = run(base, data, tmp_path / "one", 1, 8, 1, **settings)
    expected = read_metrics(tmp_path / "one")
    assert [m["replayed"] for m in expected] == [0] + [budget] * 7
    assert expected[-1]["memory_size"] == 30
    for cut in cuts:
        output_dir = tmp_path / "_".join(map(str, cut))
        memories = run(base, data, output_dir, *cut, **settings)
        assert_close_logs(output_dir, tmp_path / "one")
        for mine in memories:
            for name in ("example_ids", "replay_counts", "lengths", "tokens"):
                assert torch.equal(mine[name], memory[name])
            torch.testing.assert_close(
                mine["scores"], memory["scores"], rtol=1e-4, atol=1e-6
            )
        for mine in memories[1:]:
            assert torch.equal(mine["scores"], memories[0]["scores"])


@pytest.mark.parametrize(
    ("selection", "capacity", "step"),
    [("hard", 100, 3), ("uniform", 16, 4)],
    ids=["other draws", "other writes"],
)
def test_a_rank_whose_memory_differs_ends_the_run(
    base, data, tmp_path, monkeypatch, selection, capacity, step
):
    def perturbed(self, batch, errors):
        refresh(self, batch, errors.flip(0) if dist.get_rank() == 1 else errors)

    refresh = EpisodicReplay.refresh
    monkeypatch.setattr(EpisodicReplay, "refresh", perturbed)
    cfg = small_config(
        *(base, data, tmp_path),
        replay__selection=selection,
        replay__capacity=capacity,
        replay__score_update_rate=1.0,
        save_every_n_steps=1,
    )
    with pytest.raises(RuntimeError, match=f"rank 1 differs .* rank 0 at step {step}"):
        train(cfg, 2)
    assert len(read_metrics(tmp_path)) == step - 1


def test_ranks_that_read_other_pairs_are_named(base, data, tmp_path, monkeypatch):
    """As from copies of a file on each node."""
    monkeypatch.setattr(
        TrainingPairs, "data", property(lambda self: {"pairs": f"of {self._rank}"})
    )
    cfg = small_config(base, data, tmp_path, batch_size=2)
    with pytest.raises(
        ValueError, match=r"rank 1 reads other pairs \(of 1\) than rank 0"
    ):
        train(cfg, 2)


def test_ranks_that_read_another_base_model_are_named(
    base, data, tmp_path, monkeypatch
):
    def load_base(cfg, *args):
        weights, merged = read(cfg, *args)
        if dist.get_rank() == 1:
            weights["norm.scale"] = 2 * weights["norm.scale"]
        return weights, merged

    read = start.load_base
    monkeypatch.setattr(start, "load_base", load_base)
    message = r"base model: rank 1 reads other weights \(.*\) than rank 0"
    with pytest.raises(ValueError, match=message):
        train(small_config(base, data, tmp_path, batch_size=2), 2)
