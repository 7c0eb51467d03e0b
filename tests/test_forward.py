"""Packed forward = three separate forwards, for losses and every gradient.

Chain: reference (one forward a view, no packing) = packed on one row a pair = packed with
several pairs a row, to 1e-5 in float32.
"""

import pytest
import torch

from erjepa.forward import PackedDecoder
from erjepa.loss import JEPALoss
from erjepa.packing import PairCollator
from tests.models_for_tests import PREDICTOR_IDS, random_pairs, small_decoder
from tests.reference.three_forwards import reference_loss

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def packed_model(decoder, k, train_predictor_tokens=True):
    model = PackedDecoder(
        decoder,
        num_predictor_tokens=k,
        train_predictor_tokens=train_predictor_tokens,
    )
    if model.predictor is not None:
        rows = decoder.tok_embeddings.weight[PREDICTOR_IDS[:k]]
        model.predictor.data.copy_(rows.detach() * 1.5)
    return model


def gradients(module):
    return {n: p.grad for n, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("views", ["shared", "standalone"])
@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("row_length", [None, 128])
@pytest.mark.parametrize("trained", [True, False])
def test_packed_equals_three_forwards(views, k, row_length, trained):
    pairs = random_pairs(7)
    decoder = small_decoder()
    model = packed_model(decoder, k, trained)
    loss_fn = JEPALoss(lm_weight=0.7, jepa_weight=1.3)
    collator = PairCollator(
        views=views, predictor_ids=PREDICTOR_IDS[:k], row_length=row_length
    )
    batch = collator(pairs)
    assert row_length is None or batch.tokens.shape[0] < len(pairs)

    loss, each = loss_fn(model(batch), batch, batch.num_labels, batch.num_pairs)
    loss.backward()
    packed = gradients(model)
    model.zero_grad()
    expected, lm, jepa = reference_loss(
        decoder,
        pairs,
        views=views,
        predictor_ids=PREDICTOR_IDS[:k],
        predictor_rows=model.predictor,
        lm_weight=0.7,
        jepa_weight=1.3,
    )
    expected.backward()

    torch.testing.assert_close(loss, expected, **TOLERANCE)
    torch.testing.assert_close(each.lm.sum() / batch.num_labels, lm, **TOLERANCE)
    torch.testing.assert_close(each.jepa.mean(), jepa, **TOLERANCE)
    reference = gradients(model)
    assert packed.keys() == reference.keys()
    for name, gradient in reference.items():
        assert gradient.abs().max() > 1e-6, f"{name} has no gradient to compare"
        torch.testing.assert_close(packed[name], gradient, **TOLERANCE)


@pytest.mark.parametrize("views", ["shared", "standalone"])
def test_target_embedding_does_not_see_the_source(views):
    pairs = random_pairs(3)
    model = packed_model(small_decoder(), 1)
    collator = PairCollator(
        views=views, predictor_ids=PREDICTOR_IDS[:1], row_length=128
    )
    before = model(collator(pairs))
    for position in range(len(pairs[1].source)):
        changed = list(pairs)
        source = pairs[1].source[:]
        source[position] = (source[position] + 1) % 90
        source_view = pairs[1].source_view[:]
        source_view[-1] = (source_view[-1] + 1) % 90
        changed[1] = pairs[1]._replace(source=source, source_view=source_view)
        after = model(collator(changed))
        assert torch.equal(after.target, before.target)
        assert not torch.equal(after.predicted[1], before.predicted[1])
        for other in (0, 2):
            assert torch.equal(after.predicted[other], before.predicted[other])


def test_parts_add_up_to_the_whole():
    pairs = random_pairs(6)
    model = packed_model(small_decoder(), 1)
    loss_fn = JEPALoss()
    collator = PairCollator(predictor_ids=PREDICTOR_IDS[:1])
    whole = collator(pairs)
    total, _ = loss_fn(model(whole), whole, whole.num_labels, whole.num_pairs)
    parts = 0.0
    for part in map(collator, (pairs[:1], pairs[1:5], [], pairs[5:])):
        share, _ = loss_fn(model(part), part, whole.num_labels, whole.num_pairs)
        parts = parts + share
    torch.testing.assert_close(parts, total, **TOLERANCE)


def test_no_pairs_reach_every_trained_parameter_with_zero_gradient():
    model = packed_model(small_decoder(), 2)
    batch = PairCollator(predictor_ids=PREDICTOR_IDS)([])
    loss, each = JEPALoss()(model(batch), batch, 1, 1)
    loss.backward()
    assert loss.item() == 0 and len(each.lm) == len(each.jepa) == 0
    for name, gradient in gradients(model).items():
        assert gradient is not None and gradient.abs().max() == 0, name


def test_weights_of_the_loss_are_checked():
    with pytest.raises(ValueError, match="loss.jepa_weight must be finite"):
        JEPALoss(jepa_weight=-1.0)
    with pytest.raises(ValueError, match="both 0"):
        JEPALoss(lm_weight=0.0, jepa_weight=0.0)
