"""Pairs packed into rows: the layout of a pair, rows of a micro-batch, and their mask."""

from erjepa.packing.collate import PADDING, PackedBatch, PairCollator, best_fit
from erjepa.packing.layout import Segment, Views, attention_area, lay_out
from erjepa.packing.mask import attention_mask, block_mask, dense_mask

__all__ = [
    "PADDING",
    "PackedBatch",
    "PairCollator",
    "Segment",
    "Views",
    "attention_area",
    "attention_mask",
    "best_fit",
    "block_mask",
    "dense_mask",
    "lay_out",
]
