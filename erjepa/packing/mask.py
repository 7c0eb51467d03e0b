"""The attention mask of packed rows, as booleans and for FlexAttention."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # FlexAttention's block of queries, and of keys


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
    """The same mask for FlexAttention, from the edges of its blocks.

    Documents are runs of a row, and branches runs of a document that follow its trunk. So a
    block of keys shares a document with a later block of queries only if the last key's is
    the first query's, and whatever lies between two tokens of one branch is of that branch.

    Args:
        document (Tensor): int [R, L], L a multiple of 128.
        branch (Tensor): int [R, L].

    Returns:
        BlockMask: [R, 1, L, L].
    """
    documents = document.unflatten(1, (-1, BLOCK))  # [R, L/128, 128]
    branches = branch.unflatten(1, (-1, BLOCK))
    trunk, last_branch = branches == 0, branches == branches[..., -1:]
    # Documents begin with a trunk: where there is any, there is that of the last document.
    has_trunk = trunk.any(dim=-1)[:, None]
    one_branch = (trunk | last_branch).all(dim=-1)[:, None]

    # Queries vary along dimension 1, keys along 2.
    query_document, query_branch = documents[:, :, None], branches[:, :, None]
    key_document, key_branch = documents[:, None, :, :], branches[:, None, :, -1]
    some = key_document[..., -1] == query_document[..., 0]
    some &= has_trunk | (key_branch == query_branch[..., 0])
    every = key_document[..., 0] == query_document[..., -1]
    every &= one_branch & ((key_branch == 0) | (key_branch == query_branch[..., -1]))

    block = torch.arange(documents.shape[1], device=document.device)
    before = block[:, None] > block[None, :]
    full = before & every
    partial = (before & some & ~every) | (block[:, None] == block[None, :])

    def sees(row, head, query, key):
        same = document[row, query] == document[row, key]
        visible = (branch[row, key] == 0) | (branch[row, query] == branch[row, key])
        return same & visible & (query >= key)

    return BlockMask.from_kv_blocks(
        *_numbered(partial), *_numbered(full), BLOCK_SIZE=BLOCK, mask_mod=sees
    )


def _numbered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block has, and which ones first; bool [R, Q, K]."""
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1).int()[:, None], indices.int()[:, None]
