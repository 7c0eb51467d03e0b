"""Compiled attention sees few shapes and recompiles only for a new shape or gradient mode."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention

from erjepa.configs import config_names, load
from erjepa.objective import attention
from erjepa.packing import PairCollator, block_mask, dense_mask
from erjepa.packing.rows import halved_length, round_up
from tests.harness.cases import DEVICES
from tests.harness.models import PREDICTOR_IDS, random_pairs

LENGTH = 128
MODES = 2  # passes with a gradient, and those without


def batches(sizes):
    """Micro-batches as of steps of different pairs, new and replayed."""
    rng = random.Random(0)
    pairs = random_pairs(200)
    collator = PairCollator(predictor_ids=PREDICTOR_IDS, row_length=LENGTH)
    return [collator(rng.sample(pairs, size)) for size in sizes]


def possible_shapes(batch_size, row_length):
    """Those of micro-batches of at most so many pairs: several rows, or a lone, halved one."""
    rows = {round_up(n) for n in range(2, batch_size + 1)}
    lengths = {halved_length(n, row_length) for n in range(1, row_length + 1)}
    return {(n, row_length) for n in rows} | {(1, length) for length in lengths}


@pytest.fixture
def compiled(monkeypatch):
    """Counts graphs, which are not made into kernels."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    function = torch.compile(flex_attention, dynamic=False, backend=counter)
    monkeypatch.setattr(attention, "_compiled", lambda: function)
    return counter


@torch._dynamo.config.patch(recompile_limit=MODES * 2)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_graph_for_each_shape_and_mode_and_no_more_than_the_limit(compiled):
    """What comes out is the same past it."""
    shapes = set()
    attend = attention.MaskedAttention(None)
    for size in (3, 4, 5, 8, 10, 3, 16, 20):
        (batch,) = batches([size])
        rows, length = batch.tokens.shape
        shapes.add((rows, length))
        query = torch.randn(rows, 1, length, 16)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                mask = block_mask(batch.end)
                found = attend(query, query, query, mask=mask)
            expected = torch.nn.functional.scaled_dot_product_attention(
                query, query, query, dense_mask(batch.end)[:, None]
            )
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert len(shapes) == 3 and compiled.frame_count == MODES * 2


def test_the_limit_holds_in_every_thread():
    """Activation checkpointing recomputes layers in another one."""
    attention.raise_recompile_limit()
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(lambda: torch._dynamo.config.recompile_limit).result()
    assert found == attention.RECOMPILE_LIMIT


def test_shapes_are_the_possible_ones():
    shapes = {tuple(batch.tokens.shape) for batch in batches(range(1, 60))}
    assert 4 < len(shapes) and shapes <= possible_shapes(60, LENGTH)


@pytest.mark.parametrize("name", config_names())
def test_packaged_configs_stay_below_the_limit(name):
    cfg = load(name)
    if cfg.row_length is not None:
        training = possible_shapes(cfg.batch_size, cfg.row_length)
        alignment = possible_shapes(cfg.eval_batch_size, cfg.row_length)
        most = max(MODES * len(training), len(alignment))
        assert 8 < most <= attention.RECOMPILE_LIMIT  # more than torch allows by itself


@pytest.mark.parametrize("device", DEVICES[1:])
def test_kernels_are_compiled_once_a_shape(device):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    attend = attention.MaskedAttention(None)
    shapes = set()
    for batch in batches([40, 52, 64] * 8):
        batch = batch.to(torch.device(device))
        shapes.add(batch.tokens.shape)
        query = torch.randn(*batch.tokens.shape, 2, 64, device=device).transpose(1, 2)
        query.requires_grad_()
        mask = block_mask(batch.end)
        attend(query, query, query, mask=mask).sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(shapes)
