"""FlexAttention's mask from the edges of blocks = FlexAttention's own = the dense mask."""

import random
import shutil
from array import array

import pytest
import torch
from torch.nn.attention.flex_attention import (
    create_block_mask,
    create_mask,
    flex_attention,
)

from erjepa.datasets import Pair
from erjepa.packing import PairCollator, block_mask, dense_mask
from tests.models_for_tests import PREDICTOR_IDS

LENGTH = 1024
COUNTS = ("kv_num_blocks", "q_num_blocks", "full_kv_num_blocks", "full_q_num_blocks")


def long_pairs(count, seed):
    """Pairs whose segments are shorter and longer than a block."""
    rng = random.Random(seed)

    def tokens(high):
        return array("i", [1] * rng.randint(1, high))

    return [
        Pair(i, tokens(high), tokens(9), tokens(high), tokens(high), tokens(high))
        for i, high in enumerate(rng.choices([20, 130, 330], k=count))
    ]


def packed(views, seed, count=9):
    predictors = PREDICTOR_IDS if seed % 2 else [7] * 140
    collator = PairCollator(views=views, predictor_ids=predictors, row_length=LENGTH)
    fitting = [p for p in long_pairs(count, seed) if collator.length(p) <= LENGTH]
    return collator(fitting)


def blocks(mask, name):
    """For every query block (key block) the set of its key blocks (query blocks)."""
    indices = getattr(mask, name.replace("num_blocks", "indices"))[:, 0].tolist()
    return [
        [sorted(i[:n]) for i, n in zip(*row, strict=True)]
        for row in zip(indices, getattr(mask, name)[:, 0].tolist(), strict=True)
    ]


@pytest.mark.parametrize("views", ["shared", "standalone", "none"])
@pytest.mark.parametrize("seed", range(6))
def test_blocks_are_those_that_flex_attention_finds(views, seed):
    batch = packed(views, seed)
    mask = block_mask(batch.document, batch.branch)
    rows = len(batch.tokens)
    found = create_block_mask(
        mask.mask_mod, rows, None, LENGTH, LENGTH, device=batch.tokens.device
    )
    for name in COUNTS:
        assert blocks(mask, name) == blocks(found, name)
        assert getattr(mask, name).dtype == getattr(found, name).dtype
    assert mask.shape == found.shape
    dense = create_mask(mask.mask_mod, rows, 1, LENGTH, LENGTH, device="cpu")
    assert torch.equal(dense[:, 0], dense_mask(batch.document, batch.branch))


def test_the_pairs_of_these_tests_make_full_blocks():
    masks = [block_mask(b.document, b.branch) for b in (packed("shared", 2),)]
    assert sum(mask.full_kv_num_blocks.sum() for mask in masks) > 5


COMPILED = pytest.param(
    torch.compile(flex_attention, dynamic=False),
    id="compiled",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(not shutil.which("g++"), reason="needs g++"),
    ],
)


@pytest.mark.parametrize("attention", [flex_attention, COMPILED])
def test_attention_is_that_of_the_dense_mask(attention):
    batch = packed("shared", 2)
    query, key, value = torch.randn(3, len(batch.tokens), 2, LENGTH, 16).unbind()
    flex = attention(
        query, key, value, block_mask=block_mask(batch.document, batch.branch)
    )
    dense = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, dense_mask(batch.document, batch.branch)[:, None]
    )
    torch.testing.assert_close(flex, dense, rtol=1e-5, atol=1e-5)
