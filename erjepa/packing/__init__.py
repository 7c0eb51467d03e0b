"""Packing of pairs: the paths of a pair, prefix trees of many pairs, their rows and mask.

With LoRA dropout, paths that share tokens share their dropout: each pair's loss is its loss under
some dropout mask, but the masks of pairs in one row are not independent.
"""

from erjepa.packing.batch import PackedBatch
from erjepa.packing.collate import PairCollator
from erjepa.packing.layout import Direction, Views, lay_out, layout_of
from erjepa.packing.mask import (
    BLOCK,
    Attention,
    Window,
    attention_mask,
    block_mask,
    dense_mask,
)
from erjepa.packing.tree import prefix_tree, tree_size

__all__ = [
    "BLOCK",
    "Attention",
    "Direction",
    "PackedBatch",
    "PairCollator",
    "Views",
    "Window",
    "attention_mask",
    "block_mask",
    "dense_mask",
    "lay_out",
    "layout_of",
    "prefix_tree",
    "tree_size",
]
