"""Collapse measures and terms on embeddings with known values."""

import inspect
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from erjepa.objective import JEPALoss, rankme, retrieval_at_1
from erjepa.objective.terms import Covariance, SIGReg, Variance
from tests.harness.passes import OBJECTIVES


@pytest.fixture
def normal():
    return torch.randn(4000, 6, generator=torch.Generator().manual_seed(0))


def test_rank_is_the_number_of_equal_directions():
    assert rankme(torch.eye(7)[:4] * 3).item() == pytest.approx(4, rel=1e-4)
    assert rankme(torch.ones(9, 5)).item() == pytest.approx(1, abs=1e-3)
    by_hand = torch.tensor([[3.0, 0], [0, 1]])  # shares 3/4 and 1/4
    assert rankme(by_hand).item() == pytest.approx(4 / 3**0.75, rel=1e-4)


def test_predictions_that_find_their_target():
    target = torch.eye(4)
    predicted = target[[0, 1, 3, 2]] + 0.1
    assert retrieval_at_1(predicted, target).item() == 0.5


def test_predictions_as_near_to_the_targets_of_other_pairs(normal):
    assert retrieval_at_1(torch.ones(4, 3), torch.ones(4, 3)).item() == 0.25
    labels = torch.eye(4)[torch.arange(16) % 4]
    assert retrieval_at_1(labels + 0.1, labels).item() == 0.25
    others = labels.roll(1, 0)
    assert retrieval_at_1(others, labels).item() == 0
    # One target occurs twice, and the others once.
    target = torch.eye(4)[[0, 0, 1, 2]]
    assert retrieval_at_1(target + 0.1, target).item() == 0.75
    # Rounding breaks the ties.
    nearly = torch.ones(99, 6) + 1e-6 * normal[:99]
    assert retrieval_at_1(nearly, nearly.flip(0)).item() < 0.1


def sigreg(embeddings, seed=0):
    return SIGReg(1.0, slices=64).value(embeddings, seed)


def variance_term(embeddings):
    return Variance(1.0).value(embeddings, 0)


def covariance_term(embeddings):
    return Covariance(1.0).value(embeddings, 0)


def test_sigreg_is_least_for_a_standard_normal(normal):
    least = sigreg(normal)
    for other in (normal * 2, normal * 0.5, normal + 1, normal[:, :1].expand(-1, 6)):
        assert sigreg(other) > 20 * least
    assert sigreg(normal, 1) != least
    assert sigreg(torch.stack([normal, normal * 2]))[0] == least


def test_vicreg_is_zero_where_nothing_has_collapsed(normal):
    assert variance_term(normal * 1.1) == 0
    assert variance_term(torch.ones(5, 3)).item() == pytest.approx(0.99)
    assert covariance_term(normal) < 1e-2 * covariance_term(normal[:, :1].expand(-1, 6))
    # Of two dimensions that are one: Cov^2 twice over two.
    alike = torch.tensor([[1.0, 1], [-1, -1]])
    assert covariance_term(alike).item() == pytest.approx(4)


@pytest.mark.parametrize(
    "key", ["sigreg_weight", "variance_weight", "covariance_weight"]
)
def test_what_keeps_from_collapse_needs_a_jepa_loss(key):
    with pytest.raises(ValueError, match="loss.jepa_weight is 0"):
        JEPALoss(jepa_weight=0.0, **{key: 0.1})
    assert JEPALoss(**{key: 0.1}).needs_whole_batch and not JEPALoss().needs_whole_batch


def test_one_pair_has_no_variance():
    one = torch.ones(1, 1, 4, requires_grad=True)
    loss = JEPALoss(variance_weight=1.0, covariance_weight=1.0).whole(one, one, 0)[0]
    assert loss == 0


@pytest.mark.parametrize("side", ["source_to_target", "both"])
@pytest.mark.parametrize(
    "keys",
    [{"sigreg_weight": 1.0}, {"covariance_weight": 1.0}, {"distance": "infonce"}],
)
def test_operations_are_those_that_torch_counts(keys, side):
    loss = JEPALoss(**keys, direction=side)
    comparisons = 2 if side == "both" else 1
    shape = comparisons, 16, 8
    predicted, target = (torch.randn(shape, requires_grad=True) for _ in range(2))
    with FlopCounterMode(display=False) as counter:
        loss.whole(predicted, target, 0)[0].backward()
    assert loss.whole_flops(16, 8) == counter.get_total_flops()


def test_every_term_is_among_the_objectives_of_the_tests():
    """Which are held to one rank, one micro-batch and a slow, obvious version."""
    keys = {key for loss, _ in OBJECTIVES.values() for key in loss}
    weights = {n for n in inspect.signature(JEPALoss).parameters if "_weight" in n}
    assert weights - {"lm_weight", "jepa_weight"} <= keys


def test_the_term_of_the_guide_has_its_value():
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    code = text.split("### A loss term")[1].split("```python\n")[1].split("```")[0]
    defined = {"__name__": __name__}
    exec(code, defined)
    term = defined["SmallNorm"](0.5)
    assert (term.name, term.weight) == ("norm", 0.5)
    assert term.value(torch.full((1, 5, 4), 3.0), 0).tolist() == [36]
