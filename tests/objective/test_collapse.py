"""What is measured and taken against collapse, on embeddings whose answer is known."""

import pytest
import torch

from erjepa.objective import JEPALoss, rankme, retrieval_at_1
from erjepa.objective.sigreg import sigreg
from erjepa.objective.vicreg import covariance_term, variance_term


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
    # Where all are alike none is nearest.
    assert retrieval_at_1(torch.ones(4, 3), torch.ones(4, 3)).item() == 0


def test_sigreg_is_least_for_a_standard_normal(normal):
    least = sigreg(normal, 64, 0)
    for other in (normal * 2, normal * 0.5, normal + 1, normal[:, :1].expand(-1, 6)):
        assert sigreg(other, 64, 0) > 20 * least
    assert sigreg(normal, 64, 1) != least
    assert sigreg(torch.stack([normal, normal * 2]), 64, 0)[0] == least


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
    with pytest.raises(ValueError, match=f"loss.{key} must be finite"):
        JEPALoss(**{key: -0.1})
    assert JEPALoss(**{key: 0.1}).looks_at_all and not JEPALoss().looks_at_all


def test_one_pair_has_no_variance():
    one = torch.ones(1, 1, 4, requires_grad=True)
    loss = JEPALoss(variance_weight=1.0, covariance_weight=1.0).whole(one, one, 0)
    assert loss == 0
