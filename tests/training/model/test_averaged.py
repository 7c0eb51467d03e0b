"""Averages of an earlier run are those of the same weights on every rank.

Ranks are processes of their own here, as torchrun starts them: in each, a set of names has another
order, and collectives in the order of a set would mix up the weights.
"""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from erjepa.training.model.averaged import AveragedWeights
from tests.harness.ranks import on_ranks


def continued():
    """Names of the weights that got the average of another one, and the number of weights."""
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(8)])
    weights = {name: torch.full((4, 4), i) for i, name in enumerate(model.state_dict())}
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    saved = {"steps": 3, "weights": {name: w.float() for name, w in weights.items()}}
    averages = AveragedWeights(0.9, model, torch.device("cpu"), saved).gather()
    wrong = [name for name, w in averages.items() if not torch.equal(w, weights[name])]
    return wrong, len(averages)


@pytest.mark.slow
def test_each_weight_continues_its_own_average():
    of_rank_0, _ = on_ranks(continued, 2, method="spawn")
    assert of_rank_0 == ([], 8)
