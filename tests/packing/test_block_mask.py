"""FlexAttention's block mask equals the one that torch builds, the dense mask and ancestry."""

import random
import shutil
from array import array

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import (
    create_block_mask,
    create_mask,
    flex_attention,
)

from erjepa.packing import block_mask, dense_mask, prefix_tree

LENGTH = 1024
COUNTS = ("kv_num_blocks", "q_num_blocks", "full_kv_num_blocks", "full_q_num_blocks")


def trees(seed):
    """Ends of two rows of trees whose paths are shorter and longer than a block, and padding."""
    rng, rows = random.Random(seed), []
    longest = rng.choice([20, 130, 330, 900])
    while len(rows) < 2:
        paths, tree = [], prefix_tree([])
        while True:
            known = rng.choice(paths) if paths and rng.random() < 0.7 else array("i")
            kept = known[: rng.randint(0, len(known))]
            length = rng.randint(1, longest)
            paths.append(kept + array("i", [rng.randrange(9)] * length))
            more = prefix_tree(paths)
            if len(more.tokens) > LENGTH or rng.random() < 0.02:
                break
            tree = more
        end = np.arange(1, LENGTH + 1)
        end[: len(tree.end)] = tree.end
        rows.append((tree, end))
    return [tree for tree, _ in rows], torch.tensor(
        np.stack([end for _, end in rows]), dtype=torch.int32
    )


def blocks(mask, name):
    """For every query block (key block) the set of its key blocks (query blocks)."""
    indices = getattr(mask, name.replace("num_blocks", "indices"))[:, 0].tolist()
    return [
        [sorted(i[:n]) for i, n in zip(*row, strict=True)]
        for row in zip(indices, getattr(mask, name)[:, 0].tolist(), strict=True)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_tokens_see_their_ancestors(seed):
    rows, end = trees(seed)
    dense = dense_mask(end)
    for tree, mask in zip(rows, dense, strict=True):
        ancestors = torch.eye(LENGTH, dtype=torch.bool)
        for path in tree.paths:
            for depth, node in enumerate(path):
                ancestors[node, path[:depth]] = True
        assert torch.equal(mask, ancestors)


@pytest.mark.parametrize("seed", range(12))
def test_blocks_are_those_that_flex_attention_finds(seed):
    _, end = trees(seed)
    mask = block_mask(end)
    found = create_block_mask(
        mask.mask_mod, len(end), None, LENGTH, LENGTH, device=end.device
    )
    for name in COUNTS:
        assert blocks(mask, name) == blocks(found, name)
        assert getattr(mask, name).dtype == getattr(found, name).dtype
    assert mask.shape == found.shape
    dense = create_mask(mask.mask_mod, len(end), 1, LENGTH, LENGTH, device="cpu")
    assert torch.equal(dense[:, 0], dense_mask(end))


def test_the_trees_of_these_tests_make_blocks_of_all_kinds():
    masks = [block_mask(trees(seed)[1]) for seed in range(12)]
    full = sum(mask.full_kv_num_blocks.sum() for mask in masks)
    partial = sum((mask.kv_num_blocks - 1).sum() for mask in masks)
    below_the_diagonal = len(masks) * 2 * (LENGTH // 128) * (LENGTH // 128 - 1) // 2
    assert min(full, partial, below_the_diagonal - full - partial) >= 50


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
    _, end = trees(3)
    query, key, value = torch.randn(3, len(end), 2, LENGTH, 16).unbind()
    flex = attention(query, key, value, block_mask=block_mask(end))
    dense = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, dense_mask(end)[:, None]
    )
    torch.testing.assert_close(flex, dense, rtol=1e-5, atol=1e-5)
