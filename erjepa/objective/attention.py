"""Attention under the masks of packed rows: FlexAttention, or matrix products on a CPU.

torch's fused attention is for rows that are long; at rows of some hundred tokens its backward
pass on a CPU takes six times its forward, and both together three times what matrix products
and a softmax take in bfloat16.

FlexAttention is compiled for each shape of rows and each gradient mode. Past a limit torch runs
it in Python instead, which holds the scores of every query and key.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.config
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torchtune import utils
from torchtune.modules import TransformerDecoder

# Graphs of one function. Rows have few shapes, see erjepa.packing.rows; torch allows 8.
RECOMPILE_LIMIT = 64

log = utils.get_logger("INFO")
_shapes: set[tuple[int, int]] = set()  # as torch's compiled graphs, of the process


def use_masked_attention(decoder: TransformerDecoder) -> None:
    """Have ``decoder`` attend by :class:`MaskedAttention`; again changes nothing.

    Raises:
        ValueError: if its layers compute attention differently, as Gemma 2's do.
    """
    for layer in decoder.layers:
        if not hasattr(layer.attn, "_attention_call"):
            raise ValueError(
                f"model: {type(layer.attn).__name__} computes attention differently "
                "and cannot read packed rows; choose a model whose layers have torchtune's "
                "MultiHeadAttention"
            )
        if not isinstance(layer.attn._attention_call, MaskedAttention):
            layer.attn._attention_call = MaskedAttention(layer.attn._attention_call)


class MaskedAttention:
    """Attention under the masks of :func:`~erjepa.packing.attention_mask`; under any other mask,
    or with dropout, torchtune's.
    """

    def __init__(self, otherwise: Callable[..., Tensor]) -> None:
        self._otherwise = otherwise

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Any, **kwargs: Any
    ) -> Tensor:
        """Attend, all of them [B, heads, s, head_dim].

        Args:
            mask: FlexAttention's; or 0 where a query sees a key, else -inf, [B, s, s]; or what
                torchtune's attention takes.
        """
        if not kwargs.get("dropout_p"):
            if isinstance(mask, BlockMask):
                return _attend_in_blocks(query, key, value, mask)
            added = isinstance(mask, Tensor) and mask.is_floating_point()
            if added and not mask.is_cuda:
                scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
                scores += mask[:, None]
                return scores.softmax(dim=-1) @ value
        return self._otherwise(query, key, value, mask=mask, **kwargs)


@torch.compiler.disable(recursive=False)  # compiled on its own, in compiled layers too
def _attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask
) -> Tensor:
    _shapes.add((len(query), query.shape[2]))
    # Each thread has its own settings, and checkpointed layers run again in another one.
    with torch._dynamo.config.patch(cache_size_limit=RECOMPILE_LIMIT):
        return _compiled()(query, key, value, mask)


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]:
    # dynamic=True compiles three times a mode, whatever the shapes; its kernels are untimed.
    return torch.compile(_flex_attention, dynamic=False)


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask
) -> Tensor:
    if not torch.compiler.is_compiling():  # torch runs this line past its limit alone
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
