"""Every objective of a divided pass equals that of all pairs, computed with loops.

The reference runs a forward pass for each view of each pair. One rank with one micro-batch, and
several of either, must equal it in loss, in each pair's error and in every gradient.
"""

from types import SimpleNamespace

import pytest
import torch
from torchtune.models.llama3 import lora_llama3
from torchtune.models.llama3_2 import lora_llama3_2

from erjepa.evaluation import validation
from erjepa.evaluation.validation import HeldOutLoss
from erjepa.objective import JEPALoss
from erjepa.packing import PairCollator, lay_out
from tests.harness.models import PREDICTOR_IDS, random_pairs
from tests.harness.passes import (
    OBJECTIVES,
    SHARED,
    WEIGHTS,
    gradients,
    packed_model,
    passes_of,
)
from tests.harness.ranks import on_ranks
from tests.reference.slow_objectives import reference_loss

CUTS = [(1, 1), (1, 3), (2, 1), (2, 2)]  # ranks, micro-batches
SEED, STEP = 5, 3


def one_pass(pairs, objective, num_batches, **layout):
    """Loss, errors and gradients of one rank's share of a pass."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = packed_model()
    direction = layout.get("direction", "source_to_target")
    loss_fn = JEPALoss(**WEIGHTS, direction=direction, **objective)
    passes = passes_of(model, loss_fn)
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, seed=SEED, **layout)
    batches = collator.split(pairs[rank::world_size], num_batches, STEP)
    totals = passes.totals(batches)
    result = passes.forward_backward(batches, totals, last=True)
    again = passes.loss(batches, totals)
    return result.loss, result.jepa, gradients(model), again, totals


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(
    ("num_pairs", "world_size", "num_batches"),
    [
        *((7, *cut) for cut in CUTS[1::2]),
        *(pytest.param(7, *cut, marks=pytest.mark.slow) for cut in CUTS[::2]),
        (1, 2, 1),
    ],
)
def test_every_cut_of_a_pass_equals_loops(name, num_pairs, world_size, num_batches):
    (objective, layout), pairs = OBJECTIVES[name], random_pairs(num_pairs)
    by_rank = on_ranks(
        lambda: one_pass(pairs, objective, num_batches, **layout), world_size
    )
    model = packed_model()
    steps = None
    if layout["views"] in ("spans", "patches"):
        seeds = [f"{SEED} {STEP} {pair.example_id}" for pair in pairs]
        steps = [
            lay_out(pair, layout["views"], 0, seed=seed)[0].steps
            for pair, seed in zip(pairs, seeds, strict=True)
        ]
    loss, errors = reference_loss(
        model.decoder,
        pairs,
        **WEIGHTS,
        **objective,
        **layout,
        steps=steps,
        predictor_ids=PREDICTOR_IDS,
        predictor_rows=model.predictor,
    )
    loss.backward()
    close = {"rtol": 1e-5, "atol": 1e-6}
    for mine, my_errors, _, again, _ in by_rank:
        torch.testing.assert_close(mine, loss, **close)
        torch.testing.assert_close(again, loss, **close)
        torch.testing.assert_close(my_errors, errors, **close)
    for parameter, expected in gradients(model).items():
        if parameter == "predictor" and steps:
            expected = torch.zeros_like(model.predictor)
        elif num_pairs > 1:
            assert expected.abs().max() > 1e-6, parameter
        added = sum(of_rank[parameter] for _, _, of_rank, *_ in by_rank)
        torch.testing.assert_close(added, expected, **close, msg=parameter)


def untied(scale_factor, **kwargs):
    return lora_llama3(apply_lora_to_output=True, **kwargs)


@pytest.mark.parametrize("builder", [lora_llama3_2, untied])
def test_a_first_look_has_the_dropout_of_the_pass(builder):
    def embeddings():
        model = packed_model(lora_dropout=0.5, builder=builder)
        passes = passes_of(model, JEPALoss(distance="infonce"))
        batches = PairCollator(predictor_ids=PREDICTOR_IDS).split(random_pairs(5), 2)
        seen = []
        model.register_forward_hook(lambda *call: seen.append(call[2].predicted))
        passes.forward_backward(batches, passes.totals(batches), last=True)
        return seen

    ((*first, third, fourth),) = on_ranks(embeddings, 1)
    assert len(first) == 2 and not torch.equal(*(part[:1] for part in first))
    assert torch.equal(first[0], third) and torch.equal(first[1], fourth)


@pytest.mark.parametrize("num_batches", [1, 3])
def test_a_first_look_counts(num_batches):
    """Only where there are several micro-batches, and one forward pass to the embeddings."""

    def counted(distance):
        pairs = random_pairs(7)
        return one_pass(pairs, {"distance": distance}, num_batches)[-1].flops

    def both():
        model = packed_model()
        passes = passes_of(model, JEPALoss())
        batches = PairCollator(predictor_ids=PREDICTOR_IDS).split(
            random_pairs(7), num_batches
        )
        look = sum(passes._count_flops.forward(batch) for batch in batches)
        return counted("infonce") - counted("mse"), look

    ((more, look),) = on_ranks(both, 1)
    assert more == (look if num_batches > 1 else 0) + 6 * 7**2 * 32


class Dataset(list):
    names, starts = ["a"], [0]


@pytest.mark.parametrize("packed", [512, 3])
def test_held_out_pairs_are_contrasted_with_all_others(packed, monkeypatch):
    """However many are packed at once."""
    monkeypatch.setattr(validation, "_PACKED", packed)
    pairs = Dataset(random_pairs(7))

    def validate(batch_size):
        collator = PairCollator(predictor_ids=PREDICTOR_IDS)
        loss_fn = JEPALoss(**WEIGHTS, distance="infonce", sigreg_weight=0.1)
        loss_fn.whole = None  # would differentiate a loss of all held-out pairs at once
        run = SimpleNamespace(
            dataset=pairs,
            collators=SimpleNamespace(new=collator),
            loss_fn=loss_fn,
            cfg=SimpleNamespace(batch_size=batch_size),
        )
        passes = passes_of(packed_model().eval(), loss_fn)
        loss = HeldOutLoss(run, passes, range(7))
        packed_at_once = [len(batch.order) for batch in loss._batches]
        assert max(packed_at_once) <= min(packed, batch_size)
        return loss()

    ((one, several),) = on_ranks(lambda: (validate(7), validate(2)), 1)
    ranks = on_ranks(lambda: validate(2), 2)
    model = packed_model()
    _, errors = reference_loss(
        model.decoder,
        pairs,
        distance="infonce",
        predictor_ids=PREDICTOR_IDS,
        predictor_rows=model.predictor,
        **SHARED,
    )
    assert one["val_jepa_loss"] == pytest.approx(errors.mean().item(), rel=1e-5)
    for other in (several, *ranks):
        assert other == pytest.approx(one, rel=1e-5)
