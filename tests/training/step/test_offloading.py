"""All offloaded activations are used, as torchtune's offloading requires."""

from contextlib import nullcontext

import pytest
import torch
from torchtune.training import OffloadActivations

from erjepa.objective import JEPALoss
from erjepa.packing import PairCollator
from tests.harness.models import PREDICTOR_IDS, random_pairs
from tests.harness.passes import OBJECTIVES, WEIGHTS, gradients, packed_model, passes_of
from tests.harness.ranks import on_ranks


def saved_tensor_hooks():
    """The innermost hooks of tensors that autograd saves, if there are any."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


LAYOUTS = {
    **OBJECTIVES,
    "cosine": ({}, {"views": "shared"}),
    "no views": ({}, {"views": "none"}),
    "infonce, no views": ({"distance": "infonce"}, {"views": "none"}),
}


def after_two_passes(offload, objective, num_batches, **layout):
    """Gradients of two passes, with activations offloaded or not, and what is left there."""
    context = nullcontext()
    if offload:
        # Nothing is so large that it moves, and all is tracked.
        context = OffloadActivations(False, False, min_offload_size=2**60)
    model = packed_model()
    direction = layout.get("direction", "source_to_target")
    loss_fn = JEPALoss(**WEIGHTS, direction=direction, **objective)
    passes = passes_of(model, loss_fn)
    passes._forward_context = context
    hooks = []
    loss_fn.register_forward_pre_hook(lambda *_: hooks.append(saved_tensor_hooks()))
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, **layout)
    batches = collator.split(random_pairs(7), num_batches)
    totals = passes.totals(batches)
    for last in (False, True):
        passes.forward_backward(batches, totals, last=last)
    assert hooks == [None] * len(batches) * 2  # what the loss saves stays on the device
    return gradients(model), len(context.tracker) if offload else 0


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("num_batches", [1, 3])
def test_passes_with_offloaded_activations(name, num_batches, monkeypatch):
    """The tracker refuses the next forward pass if the backward pass left anything."""
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: None)
    objective, layout = LAYOUTS[name]

    def both():
        return [
            after_two_passes(offload, objective, num_batches, **layout)
            for offload in (True, False)
        ]

    (((offloaded, left), (plain, _)),) = on_ranks(both, 1)
    assert left == 0
    torch.testing.assert_close(offloaded, plain, rtol=0, atol=0)
