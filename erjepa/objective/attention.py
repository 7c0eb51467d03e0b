"""Attention under the masks of packed rows: FlexAttention, or matrix products on a CPU.

torch's fused attention is made for long rows. On a CPU with rows of a few hundred tokens, its
backward pass takes six times as long as its forward pass, and both together three times as long
as matrix products and a softmax, in bfloat16.

FlexAttention is compiled for each row shape and gradient mode. Past a limit of compilations torch
runs it uncompiled, which stores the scores of all queries and keys.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.config
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torchtune import utils

# Compiled graphs per function; torch's default is 8. Rows have few shapes, see packing.rows.
RECOMPILE_LIMIT = 64

log = utils.get_logger("INFO")
_shapes: set[tuple[int, int]] = set()  # per process, like compiled graphs


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
    _shapes.add((len(query), query.shape[2]))
    # Settings are per thread, and activation checkpointing recomputes layers in another thread.
    if torch._dynamo.config.recompile_limit != RECOMPILE_LIMIT:
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    return _compiled()(query, key, value, mask)


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]:
    # dynamic=True compiles three times per mode, whatever the shapes; its speed is not measured.
    return torch.compile(_flex_attention, dynamic=False)


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask
) -> Tensor:
    if not torch.compiler.is_compiling():  # reached only past torch's limit
        _warn_of_scores(len(query), query.shape[2])
    return flex_attention(query, key, value, block_mask=mask)


@functools.cache
def _warn_of_scores(rows: int, length: int) -> None:
    shapes = ", ".join(f"{rows} x {length}" for rows, length in sorted(_shapes))
    log.warning(
        f"FlexAttention is not compiled for {rows} x {length} tokens, and holds all of "
        f"their scores: torch compiles it at most {RECOMPILE_LIMIT} times. Set a smaller "
        f"batch_size or a larger row_length. Rows had these shapes: {shapes}"
    )
