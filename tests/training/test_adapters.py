"""Initial adapters follow from the seed alone."""

import torch

from erjepa.training.adapters import initial_adapter_state
from tests.models_for_tests import small_decoder


def test_initial_adapters_follow_from_the_seed_alone():
    decoder = small_decoder(b_is_zero=True)
    first = initial_adapter_state(decoder, seed=82)
    torch.rand(7)  # what the process drew before does not matter
    again = initial_adapter_state(decoder, seed=82)
    other = initial_adapter_state(decoder, seed=23)
    assert first.keys() == {n for n, p in decoder.named_parameters() if p.requires_grad}
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        if "lora_b" in name:
            assert not weight.any()
        else:
            assert not torch.equal(weight, other[name])
            # torchtune's own initialization: uniform within 1 / sqrt(in_dim).
            bound = weight.shape[1] ** -0.5
            assert 0.9 * bound < weight.abs().max() <= bound
