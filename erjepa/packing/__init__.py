"""Pairs packed into rows: the layout of a pair, rows of a micro-batch, and their mask."""

from erjepa.packing.batch import PADDING, PackedBatch
from erjepa.packing.collate import PairCollator
from erjepa.packing.layout import Segment, Views, attention_area, lay_out
from erjepa.packing.mask import BLOCK, attention_mask, block_mask, dense_mask
from erjepa.packing.rows import few_sizes, level, tight

__all__ = [
    "BLOCK",
    "PADDING",
    "PackedBatch",
    "PairCollator",
    "Segment",
    "Views",
    "attention_area",
    "attention_mask",
    "block_mask",
    "dense_mask",
    "few_sizes",
    "lay_out",
    "level",
    "tight",
]
