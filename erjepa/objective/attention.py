"""Attention under the masks of packed rows: FlexAttention, or matrix products on a CPU.

torch's fused attention is made for long rows. On a CPU with rows of a few hundred tokens, its
backward pass takes six times as long as its forward pass, and both together three times as long
as matrix products and a softmax, in bfloat16.

FlexAttention is compiled for each row shape and gradient mode. Past a limit of compilations torch
warns, and runs it uncompiled, which stores the scores of all queries and keys.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.config
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

# Compiled graphs per function; torch's default is 8. Rows have few shapes, see packing.rows.
RECOMPILE_LIMIT = 64


def raise_recompile_limit() -> None:
    """Let torch compile a function :data:`RECOMPILE_LIMIT` times."""
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    # In recent releases that holds for one thread only, and activation checkpointing recomputes
    # layers in another one.
    entries = torch._dynamo.config._config  # type: ignore[attr-defined]
    entries["recompile_limit"].default = RECOMPILE_LIMIT


class MaskedAttention:
    """Attention under the masks of :func:`~erjepa.packing.attention_mask`. Other masks and dropout
    are passed on to torchtune's attention.
    """

    def __init__(self, fallback: Callable[..., Tensor]) -> None:
        self._fallback = fallback

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Any, **kwargs: Any
    ) -> Tensor:
        """Compute attention; query, key, value and the result are [B, heads, s, head_dim].

        Args:
            mask: a ``BlockMask``; or 0 where a query sees a key, else -inf, [B, s, s]; or any mask
                of torchtune's attention.
        """
        if not kwargs.get("dropout_p"):
            if isinstance(mask, BlockMask):
                return _attend_in_blocks(query, key, value, mask)
            added = isinstance(mask, Tensor) and mask.is_floating_point()
            if added and not mask.is_cuda:
                scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
                scores += mask[:, None]
                return scores.softmax(dim=-1) @ value
        return self._fallback(query, key, value, mask=mask, **kwargs)


@torch.compiler.disable(recursive=False)  # compiled separately, even in compiled layers
def _attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask
) -> Tensor:
    return _compiled()(query, key, value, block_mask=mask)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    # dynamic=True compiles three times per mode, whatever the shapes; its speed is not measured.
    return torch.compile(flex_attention, dynamic=False)
