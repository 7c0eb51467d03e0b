"""The attention mask of packed rows, as numbers, booleans, and for FlexAttention.

A token sees its ancestors in the row's tree: ``key <= query < end[key]``.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # FlexAttention's block of queries, and of keys

Attention = Literal["flex", "dense"]


def attention_mask(
    end: Tensor, dtype: torch.dtype, attention: Attention = "dense"
) -> Tensor | BlockMask:
    """The mask that a kind of attention takes.

    Args:
        end: one past the last descendant of each token, int [R, L]; for ``flex``, L is a
            multiple of 128.
        dtype: of queries and keys.
        attention: ``flex`` or ``dense``.

    Returns:
        FlexAttention's mask; or what is added to scores, 0 or -inf, [R, L, L].
    """
    if attention == "flex":
        return block_mask(end)
    hidden = ~dense_mask(end)
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, float("-inf"))


def dense_mask(end: Tensor) -> Tensor:
    """The mask as booleans: True where query ``[.., i, :]`` sees key ``[.., :, j]``.

    Args:
        end (Tensor): int [R, L].

    Returns:
        Tensor: bool [R, L, L].
    """
    index = torch.arange(end.shape[1], dtype=end.dtype, device=end.device)
    return (index <= index[:, None]) & (index[:, None] < end[:, None, :])


def block_mask(end: Tensor) -> BlockMask:
    """The same mask for FlexAttention, from the first and the last end in each block.

    A block of queries sees something of an earlier block of keys if one of those has not ended
    at its first query, and all of it if none has at its last.

    Args:
        end (Tensor): int [R, L], L a multiple of 128.

    Returns:
        BlockMask: [R, 1, L, L].
    """
    least, most = end.unflatten(1, (-1, BLOCK)).aminmax(dim=-1)  # [R, L/128]
    block = torch.arange(end.shape[1] // BLOCK, dtype=end.dtype, device=end.device)
    first, last = BLOCK * block[:, None], BLOCK * block[:, None] + BLOCK - 1
    before = block < block[:, None]  # of queries along dimension -2, keys along -1
    full = before & (last < least[:, None])
    some = before & (first < most[:, None]) & ~full | (block == block[:, None])

    def sees(row, head, query, key):
        return (key <= query) & (query < end[row, key])

    return BlockMask.from_kv_blocks(
        *_numbered(some), *_numbered(full), BLOCK_SIZE=BLOCK, mask_mod=sees
    )


def _numbered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block has, and which ones first; bool [R, Q, K]."""
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1).int()[:, None], indices.int()[:, None]
