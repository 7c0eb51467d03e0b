"""The attention mask of packed rows, as booleans and for FlexAttention."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


def attention_mask(document: Tensor, branch: Tensor) -> Tensor | BlockMask:
    """The mask in the form that is fastest where the tensors are.

    Args:
        document (Tensor): int [R, L]; on CUDA, L is a multiple of 128.
        branch (Tensor): int [R, L].

    Returns:
        Tensor | BlockMask: FlexAttention's mask on CUDA, booleans elsewhere.
    """
    build = block_mask if document.is_cuda else dense_mask
    return build(document, branch)


def dense_mask(document: Tensor, branch: Tensor) -> Tensor:
    """The mask as booleans: True where query ``[.., i, :]`` sees key ``[.., :, j]``.

    Args:
        document (Tensor): int [R, L].
        branch (Tensor): int [R, L].

    Returns:
        Tensor: bool [R, L, L].
    """
    index = torch.arange(document.shape[1], device=document.device)
    same = document[:, :, None] == document[:, None, :]
    visible = (branch[:, None, :] == 0) | (branch[:, :, None] == branch[:, None, :])
    return same & visible & (index[:, None] >= index[None, :])


def block_mask(document: Tensor, branch: Tensor) -> BlockMask:
    """The same mask for FlexAttention.

    Args:
        document (Tensor): int [R, L], L a multiple of 128.
        branch (Tensor): int [R, L].

    Returns:
        BlockMask: [R, 1, L, L].
    """

    def sees(row, head, query, key):
        same = document[row, query] == document[row, key]
        visible = (branch[row, key] == 0) | (branch[row, query] == branch[row, key])
        return same & visible & (query >= key)

    rows, length = document.shape
    return create_block_mask(sees, rows, None, length, length, device=document.device)
