"""Dropout with 16 random bits per entry: its rate, its independence, and no bias."""

import pytest
import torch

from erjepa.training.model.adapter_layers import QuickDropout, quicken_dropout
from tests.harness.models import small_decoder


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rate_scale_and_gradient(p, dtype):
    torch.manual_seed(0)
    x = torch.full((501, 999), 2.0, dtype=dtype, requires_grad=True)
    y = QuickDropout(p)(x)
    y.sum().backward()
    kept = y != 0
    # Six standard deviations of the share of half a million entries.
    error = 6 * (p * (1 - p) / x.numel()) ** 0.5
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=error)
    scaled = torch.tensor(2 / (1 - p)).to(dtype)
    close = {"rtol": 1e-4, "atol": 0}  # p is rounded to 16 bits
    torch.testing.assert_close(y[kept], scaled.expand(int(kept.sum())), **close)
    assert torch.equal(x.grad != 0, kept)
    gradient = (scaled / 2).expand(int(kept.sum()))
    torch.testing.assert_close(x.grad[kept], gradient, **close)


def test_entries_are_independent_and_drawn_anew():
    torch.manual_seed(0)
    dropout = QuickDropout(0.5)
    x = torch.ones(512, 512)
    first, second = dropout(x) != 0, dropout(x) != 0
    pairs = [(first, second)] + [
        (first.flatten()[:-lag], first.flatten()[lag:]) for lag in (1, 2, 3, 4, 512)
    ]
    for one, other in pairs:
        assert (one == other).float().mean().item() == pytest.approx(0.5, abs=0.006)


def test_the_same_state_gives_the_same_entries():
    dropout, x = QuickDropout(0.3), torch.ones(7, 5)
    torch.manual_seed(3)
    first = dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)


def test_nothing_is_dropped_in_evaluation():
    x = torch.ones(100)
    assert QuickDropout(0.5).eval()(x) is x
    assert QuickDropout(0.0)(x) is x


def test_adapters_get_it_where_they_drop():
    model = small_decoder(lora_dropout=0.2)
    quicken_dropout(model)
    found = [m for m in model.modules() if isinstance(m, QuickDropout)]
    assert len(found) == 2 * 7
    assert all(dropout.p == pytest.approx(0.2, abs=1e-5) for dropout in found)
    assert not any(isinstance(m, torch.nn.Dropout) for m in model.modules())
    plain = small_decoder()
    quicken_dropout(plain)
    assert not any(isinstance(m, QuickDropout) for m in plain.modules())
