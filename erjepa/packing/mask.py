"""The attention mask of packed rows: additive, as booleans, and for FlexAttention.

A token sees itself and its ancestors in the row's tree: ``key <= query < end[key]``. Layers with a
window see only near ancestors, where distance is the difference in depth, which is the position
in a pair's own text.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # FlexAttention's block size, of queries and keys

# causal: rows of one text each, with the decoder's own mask
Attention = Literal["flex", "dense", "causal"]


class Window(NamedTuple):
    """The ancestors that a layer sees: those fewer than ``size`` tokens away or, with ``chunked``,
    those in the same chunk of ``size`` tokens.
    """

    size: int
    chunked: bool = False

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Return whether a token at depth ``query`` sees its ancestor at depth ``key``."""
        if self.chunked:
            return query // self.size == key // self.size
        return query - key < self.size


def attention_mask(
    end: Tensor,
    dtype: torch.dtype,
    attention: Attention = "dense",
    *,
    depth: Tensor | None = None,
    window: Window | None = None,
) -> Tensor | BlockMask | None:
    """Return the mask for a kind of attention: a ``BlockMask`` for ``flex``; 0 or -inf, which is
    added to scores, [R, L, L], for ``dense``; ``None`` for ``causal``, the model's own mask.

    Args:
        end: one past the last descendant of each token, int [R, L]; for ``flex``, L is a multiple
            of 128.
        dtype: of queries and keys.
        depth: of each token in its tree, int [R, L]; required by ``window``, unless rows are no
            longer than the window.
    """
    if attention == "causal":
        return None
    if window is not None and end.shape[1] <= window.size:
        window = None
    if attention == "flex":
        return block_mask(end, depth=depth, window=window)
    sees = dense_mask(end)
    if window is not None:
        assert depth is not None
        sees &= window.sees(depth[:, :, None], depth[:, None])
    return torch.zeros_like(sees, dtype=dtype).masked_fill_(~sees, float("-inf"))


def dense_mask(end: Tensor) -> Tensor:
    """Return the mask, bool [R, L, L]: True where query ``[.., i, :]`` sees key ``[.., :, j]``."""
    index = torch.arange(end.shape[1], dtype=end.dtype, device=end.device)
    return (index <= index[:, None]) & (index[:, None] < end[:, None, :])


def block_mask(
    end: Tensor, *, depth: Tensor | None = None, window: Window | None = None
) -> BlockMask:
    """Return the mask for FlexAttention, [R, 1, L, L], from the smallest and largest end per block.

    A block of queries sees part of an earlier block of keys if some key has not ended at the first
    query, and all of it if no key has ended at the last query. With a window, every block that is
    seen counts as partly seen. L is a multiple of 128.
    """
    least, most = end.unflatten(1, (-1, BLOCK)).aminmax(dim=-1)  # [R, L/128]
    block = torch.arange(end.shape[1] // BLOCK, dtype=end.dtype, device=end.device)
    first, last = BLOCK * block[:, None], BLOCK * block[:, None] + BLOCK - 1
    before = block < block[:, None]  # blocks of queries in dimension -2, of keys in -1
    full = before & (last < least[:, None])
    some = before & (first < most[:, None]) & ~full | (block == block[:, None])

    def sees(row, head, query, key):
        return (key <= query) & (query < end[row, key])

    if window is not None:
        assert depth is not None
        some, full = some | full, torch.zeros_like(full)
        is_ancestor = sees

        def sees(row, head, query, key):
            is_near = window.sees(depth[row, query], depth[row, key])
            return is_ancestor(row, head, query, key) & is_near

    return BlockMask.from_kv_blocks(
        *_numbered(some), *_numbered(full), BLOCK_SIZE=BLOCK, mask_mod=sees
    )


def _numbered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key blocks each query block sees, and all key blocks, these first."""
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1).int()[:, None], indices.int()[:, None]
