"""Cosines and losses from one packed pass equal those of a forward pass per pair."""

import pytest
import torch

from erjepa.evaluation.alignment import pair_cosines, target_losses
from erjepa.objective.decoder import PackedDecoder
from erjepa.packing import PairCollator
from tests.harness.models import PREDICTOR_IDS, random_pairs, small_decoder
from tests.reference.three_forwards import hidden_states, pair_losses


@pytest.mark.parametrize("views", ["shared", "standalone"])
@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("trained", [True, False])
def test_pair_cosines(views, k, trained):
    decoder, pairs, ids = small_decoder().eval(), random_pairs(6), PREDICTOR_IDS[:k]
    rows = torch.randn(k, 32) if trained and k else None
    predictor = {} if rows is None else dict(zip(ids, rows, strict=True))
    ours, theirs = [], []
    for pair in pairs:
        source = pair.source if views == "shared" else pair.source_view
        states = hidden_states(decoder, [*source, *ids], predictor)
        z = hidden_states(decoder, list(pair.target_view), {})[-1]
        for found, state in ((ours, states[-1]), (theirs, states[len(source) - 1])):
            found.append(torch.cosine_similarity(state, z, dim=0).item())
    collator = PairCollator(views=views, predictor_ids=ids)
    model = PackedDecoder(decoder)
    model.predictor = None if rows is None else torch.nn.Parameter(rows)
    cosines = pair_cosines(model, collator, pairs)
    assert [c["cosine"] for c in cosines] == pytest.approx(ours, abs=1e-5)
    assert [c["cosine_of_input"] for c in cosines] == pytest.approx(theirs, abs=1e-5)


def test_cosines_take_no_logits(monkeypatch):
    """Those of 64 pairs would be larger than the model."""
    sizes, forward = [], PackedDecoder.forward

    def counted(self, batch):
        output = forward(self, batch)
        sizes.append(len(output.logits))
        return output

    monkeypatch.setattr(PackedDecoder, "forward", counted)
    model = PackedDecoder(small_decoder().eval())
    pair_cosines(model, PairCollator(), random_pairs(6))
    assert sizes == [0]


def test_target_losses():
    decoder, pairs = small_decoder().eval(), random_pairs(6)
    plain = {"views": "none", "predictor_ids": []}
    theirs = [pair_losses(decoder, pair, **plain)[0].mean().item() for pair in pairs]
    collator = PairCollator(views="shared", predictor_ids=PREDICTOR_IDS[:1])
    ours = target_losses(PackedDecoder(decoder), collator, pairs)
    assert [found["target_loss"] for found in ours] == pytest.approx(theirs, abs=1e-5)
    tokens = [len(pair.target) for pair in pairs]
    assert [found["target_tokens"] for found in ours] == tokens and len({*tokens}) > 1
