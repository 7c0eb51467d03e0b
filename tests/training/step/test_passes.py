"""A pass: its counts, the order of its pairs, and the weight of its loss."""

import pytest
import torch
import torch.distributed as dist

from erjepa.objective import JEPALoss, StepFlops
from erjepa.packing import PairCollator
from erjepa.training.step import passes
from erjepa.training.step.passes import (
    PassOutput,
    PassResult,
    StepTotals,
    stack_views,
    unstack_views,
)
from erjepa.training.step.random_state import random_state, set_random_state
from tests.harness.models import PREDICTOR_IDS, random_pairs
from tests.harness.passes import packed_model, passes_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    """Collectives of a single rank, without a process group."""
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(passes, "all_reduce_sum", lambda values: values)
    monkeypatch.setattr(passes, "gather_interleaved", lambda own, total: own[:total])


@pytest.fixture
def model():
    return packed_model()


def packed(count=5, num_batches=2, **layout):
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, **layout)
    return collator.split(random_pairs(count), num_batches)


def result(count=4, has_views=True):
    """Pair i has a cross-entropy of i and i labels; predictions turn away from targets."""
    numbers, views = torch.arange(count), count if has_views else 0
    angles = torch.linspace(0, 1, views)
    predicted = torch.stack([angles.cos(), angles.sin()], dim=1)[None]
    target = torch.tensor([1.0, 0.0]).expand(1, views, 2)
    return PassResult(
        example_ids=10 + numbers,
        loss=torch.tensor(3.0),
        lm=numbers.float(),
        labels=numbers.float(),
        jepa=1 - angles.cos(),
        source=torch.arange(2.0 * views).view(views, 2),
        predicted=predicted,
        target=target,
        terms={"sigreg_loss": torch.tensor(2.0)},
    )


@pytest.mark.parametrize("views", ["shared", "none"])
def test_totals_add_up_micro_batches(model, views):
    batches = packed(views=views)
    totals = passes_of(model, JEPALoss()).totals(batches)
    count = StepFlops(model.decoder)
    assert totals == (
        sum(len(pair.target) for pair in random_pairs(5)),
        5,
        sum(batch.num_tokens for batch in batches),
        sum(map(count, batches)),
        5 if views == "shared" else 0,
        0 + 1 + 2 + 3 + 4,
    )


def test_each_step_draws_anew_for_the_same_pairs(model):
    run, batches = passes_of(model, JEPALoss(sigreg_weight=1.0)), packed()
    totals = [run.totals(batches, step=step) for step in (1, 2, 1)]
    one, other, again = [run.loss(batches, of_step) for of_step in totals]
    assert one == again != other


@pytest.mark.parametrize(
    ("checksums", "others", "usual"), [([7, 7, 3], "2", 0), ([5, 9, 6, 9], "0, 2", 1)]
)
def test_a_memory_that_differs_is_named(model, monkeypatch, checksums, others, usual):
    ranks, run = len(checksums), passes_of(model, JEPALoss())
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)

    def add_others(values):
        assert values[-ranks:].tolist() == [checksums[0]] + [0] * (ranks - 1)
        values[-ranks:] = torch.tensor(checksums)
        return values

    monkeypatch.setattr(passes, "all_reduce_sum", add_others)
    found = f"memory of rank {others} differs from that of rank {usual} at step 4"
    with pytest.raises(RuntimeError, match=found):
        run.totals(packed(), checksums[0], 4)


def test_a_pass_is_split_into_new_and_replayed_pairs():
    whole = result()._replace(weight=0.5)
    new, replayed = whole.split(3)
    assert new.example_ids.tolist() == [10, 11, 12]
    assert replayed.example_ids.tolist() == [13]
    assert (new.loss, replayed.loss) == (3, 0)  # the loss of both is that of the pass
    assert (new.terms, replayed.terms) == ({"sigreg_loss": 2}, {})
    assert new.weight == replayed.weight == 0.5
    for name in ("lm", "labels", "jepa", "source"):
        parts = [getattr(part, name) for part in (new, replayed)]
        assert torch.equal(torch.cat(parts), getattr(whole, name))
    angles = torch.linspace(0, 1, 4)
    for part, own in ((new, angles[:3]), (replayed, angles[3:])):
        assert part.cosine_paired.item() == pytest.approx(own.cos().mean().item())
        assert part.predicted.shape == part.target.shape == (1, len(own), 2)


def test_scores_of_pairs_and_the_loss_of_their_labels():
    found = result()
    assert torch.equal(found.scores("jepa"), found.jepa)
    assert found.scores("lm").tolist() == [0, 1, 1, 1]  # pair 0 has no labels
    assert found.token_loss == 1
    assert result(0).token_loss == 0


@pytest.mark.parametrize("has_views", [True, False])
def test_examples_whose_loss_is_not_finite(has_views):
    found = result(has_views=has_views)
    assert not len(found.non_finite_ids())
    found.lm[2] = float("inf")
    if has_views:
        found.jepa[0] = float("nan")
    assert found.non_finite_ids().tolist() == ([10, 12] if has_views else [12])


@pytest.mark.parametrize("has_views", [True, False])
def test_pairs_come_back_in_batch_order(model, has_views):
    """Packing took them in the order 3 1, 0 2."""

    def output(*order):
        order = torch.tensor(order)
        views = order[:, None, None] + torch.tensor([0.0, 0.25, 0.5])[:, None]
        return PassOutput(
            order=order,
            example_ids=10 + order,
            loss=torch.tensor(1.5),
            lm=2.0 * order,
            labels=order + 1.0,
            views=views if has_views else views[:0],
        )

    def errors(predicted, target):
        return (target - predicted).sum(dim=(0, 2)) + predicted[0, :, 0]

    loss_fn = JEPALoss()
    loss_fn.errors = errors
    totals = StepTotals(pairs=4, views=4 * has_views)
    found = passes_of(model, loss_fn)._gather([output(3, 1), output(0, 2)], totals)
    assert found.loss == 3
    assert found.example_ids.tolist() == [10, 11, 12, 13]
    assert found.lm.tolist() == [0, 2, 4, 6] and found.labels.tolist() == [1, 2, 3, 4]
    views = [0.0, 1.0, 2.0, 3.0] if has_views else []
    assert found.source.flatten().tolist() == views
    assert found.jepa.tolist() == [0.5 + view for view in views]


def test_views_of_both_directions_are_stacked_and_unstacked(model):
    (batch,) = packed(3, 1, direction="both")
    output = model(batch)
    views = stack_views(output)
    assert views.shape == (3, 1 + 2 * 2, 32) and views.dtype == torch.float32
    for part, name in zip(
        unstack_views(views), ("source", "predicted", "target"), strict=True
    ):
        assert torch.equal(part, getattr(output, name))


@pytest.mark.parametrize("distance", ["cosine", "infonce"])
def test_the_weight_is_that_of_the_gradient_and_measuring_takes_none(model, distance):
    run = passes_of(model, JEPALoss(distance=distance))
    batches = packed()
    totals = run.totals(batches)
    found = {}
    for weight in (1.0, 0.25):
        model.zero_grad()
        outcome = run.forward_backward(batches, totals, weight=weight, last=True)
        found[weight] = outcome, model.predictor.grad.clone()
    (one, gradient), (quarter, smaller) = found.values()
    assert torch.equal(one.loss, quarter.loss) and quarter.weight == 0.25
    torch.testing.assert_close(smaller, 0.25 * gradient)
    model.zero_grad()
    measured = run.measure(batches, totals)
    assert model.predictor.grad is None
    assert torch.equal(measured.example_ids, torch.arange(5))
    torch.testing.assert_close(run.loss(batches, totals), one.loss)
    assert model.predictor.grad is None


@pytest.mark.parametrize("num_batches", [1, 2])
def test_each_loss_term_that_acts_has_its_value(model, num_batches):
    weights = {"sigreg_weight": 0.5, "covariance_weight": 2.0, "variance_weight": 0.0}
    run, plain = (passes_of(model, JEPALoss(**own)) for own in (weights, {}))
    batches = packed(num_batches=num_batches)
    totals = run.totals(batches)
    found = run.forward_backward(batches, totals, last=True)
    assert found.terms.keys() == {"sigreg_loss", "covariance_loss"}
    expected = plain.forward_backward(batches, totals, last=True).loss
    for key, weight in weights.items():
        expected += weight * found.terms.get(key.replace("weight", "loss"), 0)
    torch.testing.assert_close(found.loss, expected)


@pytest.mark.parametrize("last", [True, False])
def test_ranks_reduce_after_the_last_micro_batch(model, monkeypatch, last):
    noted = []
    monkeypatch.setattr(
        passes, "set_last_backward", lambda model, last, **_: noted.append(last)
    )
    run, batches = passes_of(model, JEPALoss()), packed(6, 3)
    run.forward_backward(batches, run.totals(batches), last=last)
    assert noted == [False, False, last]


def test_the_random_state_is_put_back():
    torch.manual_seed(0)
    state = random_state(CPU)
    first = torch.rand(3)
    set_random_state(state, CPU)
    assert torch.equal(torch.rand(3), first)
