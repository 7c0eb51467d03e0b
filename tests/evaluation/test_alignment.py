"""Cosines of pairs in one packed pass = those of two forward passes for each pair."""

import pytest
import torch

from erjepa.evaluation.alignment import pair_cosines
from erjepa.packing import PairCollator
from tests.harness.models import PREDICTOR_IDS, random_pairs, small_decoder
from tests.reference.three_forwards import hidden_states


@pytest.mark.parametrize("views", ["shared", "standalone"])
@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("trained", [True, False])
def test_pair_cosines(views, k, trained):
    decoder, pairs, ids = small_decoder().eval(), random_pairs(6), PREDICTOR_IDS[:k]
    rows = torch.randn(k, 32) if trained and k else None
    predictor = {} if rows is None else dict(zip(ids, rows, strict=True))
    expected = []
    for pair in pairs:
        source = pair.source if views == "shared" else pair.source_view
        p = hidden_states(decoder, [*source, *ids], predictor)[-1]
        z = hidden_states(decoder, list(pair.target_view), {})[-1]
        expected.append(((p @ z) / (p.norm() * z.norm())).item())
    collator = PairCollator(views=views, predictor_ids=ids)
    assert pair_cosines(decoder, collator, pairs, rows) == pytest.approx(
        expected, abs=1e-5
    )
