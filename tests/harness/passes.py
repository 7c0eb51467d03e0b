"""A small model, its passes and gradients, for every objective."""

from contextlib import nullcontext

import torch

from erjepa.objective import PackedDecoder
from erjepa.training.step.passes import Passes
from tests.harness.models import PREDICTOR_IDS, small_decoder

WEIGHTS = {"lm_weight": 0.7, "jepa_weight": 1.3}
INFONCE = {"distance": "infonce", "temperature": 0.5}
SHARED = {"views": "shared"}
OBJECTIVES = {  # keys of the loss, layout of a pair
    "l2": ({"distance": "l2"}, SHARED),
    "mse": ({"distance": "mse"}, {"views": "standalone"}),
    "infonce": (INFONCE, SHARED),
    "to source": (INFONCE, {"direction": "target_to_source", **SHARED}),
    "both": (INFONCE, {"direction": "both", "predictor_position": "front", **SHARED}),
    "in front": ({}, {"predictor_position": "front", "views": "standalone"}),
    "spans": ({}, {"views": "spans"}),
    "sigreg": ({"sigreg_weight": 0.3, "sigreg_slices": 8, **INFONCE}, SHARED),
    "vicreg": (
        {"variance_weight": 2.0, "covariance_weight": 0.5},
        {"direction": "both", **SHARED},
    ),
    "patches": (INFONCE, {"views": "patches"}),
}


def packed_model(**kwargs):
    decoder = small_decoder(**kwargs)
    model = PackedDecoder(decoder, num_trained_tokens=2)
    rows = decoder.tok_embeddings.weight[PREDICTOR_IDS]
    model.predictor.data.copy_(rows.detach() * 1.5)
    return model


def passes_of(model, loss_fn):
    return Passes(
        model,
        loss_fn,
        torch.device("cpu"),
        forward_context=nullcontext(),
        keep_gathered=False,
    )


def gradients(model):
    return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
