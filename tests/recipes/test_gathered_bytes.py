"""For replay, ranks exchange the embeddings of a step's pairs and no tokens."""

import torch.distributed as dist

from erjepa.training.model import distributed
from tests.harness.models import BASE_SHAPE
from tests.harness.runs import small_config, train


def test_a_step_gathers_three_embeddings_of_a_pair(base, data, tmp_path, monkeypatch):
    """The figures of docs/several_gpus.md: 12 H + 16 bytes a pair, new or replayed."""
    received = []

    def all_gather(tensors, tensor, *more):
        received.append(sum(t.nbytes for t in tensors))
        return gather(tensors, tensor, *more)

    gather = dist.all_gather
    monkeypatch.setattr(distributed.dist, "all_gather", all_gather)
    settings = {"batch_size": 4, "stop__steps": 2, "replay__selection": "uniform"}
    cfg = small_config(base, data, tmp_path, **settings)
    counted = train(cfg, 2, lambda recipe: list(received))
    of_a_pair = 3 * 4 * BASE_SHAPE["embed_dim"] + 8 + 4 + 4
    # Step 1 has 8 new pairs and an empty memory, step 2 has 8 new and 8 replayed ones.
    assert [sum(of_rank) for of_rank in counted] == [3 * 8 * of_a_pair] * 2
