"""Compiled attention meets few shapes, and is built anew for a shape alone."""

import random

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention

from erjepa.packing import PairCollator, attention_mask, block_mask
from tests.models_for_tests import PREDICTOR_IDS, random_pairs

LENGTH = 128


def batches(steps=24):
    """Micro-batches as of steps of different pairs, new and replayed."""
    rng = random.Random(0)
    pairs = random_pairs(200)
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, row_length=LENGTH)
    for _ in range(steps):
        yield collator(rng.sample(pairs, rng.choice([40, 52, 64])))


def test_attention_is_compiled_once_a_shape():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(flex_attention, dynamic=False, backend=counter)
    shapes = set()
    for batch in batches():
        shapes.add(batch.tokens.shape)
        query = torch.randn(len(batch.tokens), 1, LENGTH, 16)
        mask = block_mask(batch.end)
        compiled(query, query, query, block_mask=mask)
    assert counter.frame_count == len(shapes)
    # More than eight, and torch's limit would send attention back to eager mode.
    assert 1 < len(shapes) <= 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_kernels_are_compiled_once_a_shape_on_cuda():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(flex_attention, dynamic=False)
    shapes = set()
    for batch in batches():
        batch = batch.to(torch.device("cuda"))
        shapes.add(batch.tokens.shape)
        query = torch.randn(len(batch.tokens), 2, LENGTH, 64, device="cuda")
        query.requires_grad_()
        mask = attention_mask(batch.end, query.dtype)
        compiled(query, query, query, block_mask=mask).sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(shapes)
