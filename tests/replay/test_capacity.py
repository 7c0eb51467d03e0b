"""The cost of a small memory, compared with the paper's table of capacities.

The paper trains four epochs of 8000 pairs and prints the PFLOPs of four capacities (table "Ablation
on episodic memory capacity"): 181.536 at M = 10 and 219.667 at M = 10^4. All pairs cost about the
same, so the ratio is that of the numbers of pairs, new and replayed. A memory of ten slots replays
at most ten pairs per step, so the ratio implies 16 pairs per step. Fewer pairs give the same
ratio.
"""

import pytest
import torch

from erjepa.replay import EpisodicReplay, ReplaySettings

PAIRS, EPOCHS, EMBED_DIM = 500, 4, 16
PAPER = 181.536 / 219.667


def pairs_trained(capacity, batch):
    """New and replayed pairs of a run with content selection and no model: an example's
    embedding is made up, and moves a little from one epoch to the next.
    """
    generator = torch.Generator().manual_seed(0)
    settings = ReplaySettings(capacity=capacity, address="dense")
    replay = EpisodicReplay(settings, embed_dim=EMBED_DIM, seed=0)
    sources = torch.randn(PAIRS, EMBED_DIM, generator=generator)
    total = 0
    for _ in range(EPOCHS):
        sources += 0.1 * torch.randn(sources.shape, generator=generator)
        for ids in torch.randperm(PAIRS, generator=generator).split(batch):
            segments = [([i], [i]) for i in ids.tolist()]
            addresses = replay.encode(sources[ids])
            draw = replay.draw(ids, segments, addresses)
            total += len(ids) + len(draw.segments)
            errors = torch.rand(len(draw.segments) + len(ids), generator=generator)
            replay.refresh(draw, errors[: len(draw.segments)])
            replay.write(ids, segments, addresses, errors[len(draw.segments) :])
    return total


@pytest.mark.parametrize("batch, is_the_papers", [(16, True), (64, False)])
def test_a_memory_of_ten_costs_what_the_paper_prints(batch, is_the_papers):
    ratio = pairs_trained(10, batch) / pairs_trained(10_000, batch)
    assert (abs(ratio - PAPER) < 0.03) is is_the_papers, ratio
