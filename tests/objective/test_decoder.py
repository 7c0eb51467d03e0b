"""The packed forward pass equals three separate ones, in losses and every gradient.

Three equal computations, to 1e-5 in float32: the reference (one forward pass per view, no packing),
rows of one pair, and rows of several pairs, which share tokens, predictor tokens, readouts and
labels.
"""

from itertools import product

import pytest
import torch

from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.loss import JEPALoss
from erjepa.packing import PairCollator
from tests.harness.models import random_pairs, related_pairs, small_decoder
from tests.harness.passes import gradients
from tests.reference.three_forwards import pair_losses, reference_loss

PREDICTOR_IDS = [94, 95, 96, 97]

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def packed_model(decoder, k, trained=True):
    model = PackedDecoder(decoder, num_trained_tokens=k if trained else 0)
    if model.predictor is not None:
        rows = decoder.tok_embeddings.weight[PREDICTOR_IDS[:k]]
        model.predictor.data.copy_(rows.detach() * 1.5)
    return model


def both(pairs, collator, *, k, views, trained=True, attention="dense"):
    """Loss, losses of each pair and gradients: packed, and from three forwards."""
    decoder = small_decoder(vocab_size=98)
    model = packed_model(decoder, k, trained)
    model.attend_by(attention)
    weights = {"lm_weight": 0.7, "jepa_weight": 1.3 * (views != "none")}
    batch = collator(pairs)
    loss_fn, output = JEPALoss(**weights), model(batch)
    loss, lm = loss_fn(output, batch, batch.num_labels, batch.num_pairs)
    loss.backward()
    jepa = loss_fn.errors(output.predicted, output.target).detach()
    packed = (loss, lm, jepa, gradients(model))
    model.zero_grad()
    objective = {
        "views": views,
        "predictor_ids": PREDICTOR_IDS[:k],
        "predictor_rows": model.predictor,
    }
    expected, *_ = reference_loss(decoder, pairs, **weights, **objective)
    expected.backward()
    with torch.no_grad():
        lm, jepa = zip(
            *(pair_losses(decoder, pair, **objective) for pair in pairs), strict=True
        )
    lm = torch.stack([losses.sum() for losses in lm])
    jepa = torch.stack(jepa) if views != "none" else torch.zeros(0)
    return packed, (expected, lm, jepa, gradients(model)), batch


def assert_same(packed, reference):
    for mine, expected in zip(packed[:3], reference[:3], strict=True):
        torch.testing.assert_close(mine, expected, **TOLERANCE)
    assert packed[3].keys() == reference[3].keys()
    for name, gradient in reference[3].items():
        assert gradient.abs().max() > 1e-6, f"{name} has no gradient to compare"
        torch.testing.assert_close(packed[3][name], gradient, **TOLERANCE, msg=name)


@pytest.mark.parametrize(
    ("views", "k"), [*product(["shared", "standalone"], [0, 1, 4]), ("none", 0)]
)
@pytest.mark.parametrize(
    "rows", [{}, {"row_length": 64}, {"row_length": 64, "attention": "dense"}], ids=str
)
@pytest.mark.parametrize("seed", range(2))
def test_packed_equals_three_forwards(views, k, rows, seed):
    """Pairs that share a source or a target, begin one another, or are equal."""
    pairs = related_pairs(12, seed)
    collator = PairCollator(views=views, predictor_ids=PREDICTOR_IDS[:k], **rows)
    packed, reference, batch = both(pairs, collator, k=k, views=views)
    assert_same(packed, reference)
    assert batch.num_tokens < sum(map(collator.length, pairs))
    assert batch.num_projected < batch.num_labels
    if k:
        assert batch.predictor_pos.numel() < k * len(pairs)
    if "row_length" in rows and views != "none":
        assert len(batch.tokens) > 1


@pytest.mark.parametrize(
    ("views", "k"), [*product(["shared", "standalone"], [0, 4]), ("none", 0)]
)
@pytest.mark.parametrize("attention", ["dense", "causal"])
def test_rows_of_one_text_equal_three_forwards(views, k, attention):
    pairs = related_pairs(12, 0)
    ids = PREDICTOR_IDS[:k]
    collator = PairCollator(views=views, predictor_ids=ids, attention="causal")
    packed, reference, batch = both(
        pairs, collator, k=k, views=views, attention=attention
    )
    assert_same(packed, reference)
    texts = {"shared": 3, "standalone": 3, "none": 1}[views]
    assert len(batch.tokens) == texts * len(pairs)
    assert batch.predictor_pos.numel() == k * len(pairs)


@pytest.mark.parametrize("views", ["shared", "standalone"])
def test_pairs_of_one_source_equal_three_forwards(views):
    source, *others = random_pairs(5)
    names = ("source", "bridge", "source_view")
    same = {name: getattr(source, name) for name in names}
    pairs = [source, *(pair._replace(**same) for pair in others)]
    collator = PairCollator(views=views, predictor_ids=PREDICTOR_IDS[:4])
    packed, reference, batch = both(pairs, collator, k=4, views=views)
    assert_same(packed, reference)
    assert len(set(batch.predicted_pos[0].tolist())) == 1
    assert batch.predictor_pos.numel() == 4


@pytest.mark.parametrize("views", ["shared", "standalone"])
@pytest.mark.parametrize("k", [1, 2])
def test_frozen_predictor_tokens_equal_three_forwards(views, k):
    pairs = random_pairs(7)
    collator = PairCollator(views=views, predictor_ids=PREDICTOR_IDS[:k])
    packed, reference, _ = both(pairs, collator, k=k, views=views, trained=False)
    assert_same(packed, reference)
    assert "predictor" not in packed[3]


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
        assert not torch.equal(after.predicted[:, 1], before.predicted[:, 1])
        for other in (0, 2):
            assert torch.equal(after.predicted[:, other], before.predicted[:, other])


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
    batch = PairCollator(predictor_ids=PREDICTOR_IDS[:2])([])
    loss, lm = JEPALoss()(model(batch), batch, 1, 1)
    loss.backward()
    assert loss.item() == 0 and len(lm) == 0
    for name, gradient in gradients(model).items():
        assert gradient is not None and gradient.abs().max() == 0, name


def test_one_weight_of_the_loss_is_above_zero():
    with pytest.raises(ValueError, match="both 0"):
        JEPALoss(lm_weight=0.0, jepa_weight=0.0)
