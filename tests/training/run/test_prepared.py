"""What a run makes before it loads weights."""

import pytest
import torch

from erjepa.configs import load
from erjepa.objective import JEPALoss
from erjepa.training.run.prepared import PreparedRun


class NearLoss(JEPALoss):
    """A loss with a term of its own."""

    def __init__(
        self, lm_weight: float = 1.0, jepa_weight: float = 1.0, near: float = 0
    ):
        super().__init__(lm_weight, jepa_weight)
        self.near = near

    @property
    def reads_embeddings(self):
        return super().reads_embeddings or self.near > 0


@pytest.mark.parametrize(
    ("keys", "views"),
    [
        (["loss.jepa_weight=1"], "shared"),
        (["loss.jepa_weight=0"], "none"),
        (["loss.jepa_weight=0", "loss.near=1"], "shared"),
        (
            ["loss.jepa_weight=0", "replay.weight=1"],
            "shared",
        ),  # scored by the JEPA loss
    ],
)
def test_pairs_have_views_if_their_embeddings_are_read(keys, views):
    settings = ["replay.weight=0", f"loss={__name__}.NearLoss", *keys]
    run = PreparedRun(load("tiny_synth", settings), torch.device("cpu"))
    assert run.views == views
