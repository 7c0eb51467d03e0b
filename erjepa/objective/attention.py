"""Attention under a mask, on a CPU as plain matrix products.

torch's fused attention is for rows that are long; at rows of some hundred tokens its backward
pass on a CPU takes six times its forward, and both together three times what matrix products
and a softmax take in bfloat16.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torchtune.modules import TransformerDecoder


def use_matrix_products(decoder: TransformerDecoder) -> None:
    """Have ``decoder`` attend by :class:`MaskedAttention`; again changes nothing."""
    for layer in decoder.layers:
        if not isinstance(layer.attn._attention_call, MaskedAttention):
            layer.attn._attention_call = MaskedAttention(layer.attn._attention_call)


class MaskedAttention:
    """Attention whose mask, where it is a tensor on a CPU, is added to the scores.

    Args:
        otherwise (Callable[..., Tensor]): torchtune's attention, for any other mask.
    """

    def __init__(self, otherwise: Callable[..., Tensor]) -> None:
        self._otherwise = otherwise

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Any, **kwargs: Any
    ) -> Tensor:
        """Attend.

        Args:
            query (Tensor): [B, heads, s, head_dim].
            key (Tensor): [B, heads, s, head_dim].
            value (Tensor): [B, heads, s, head_dim].
            mask (Any): 0 where a query sees a key, else -inf, [B, s, s]; or what torchtune's
                attention takes.
            **kwargs (Any): for torchtune's attention; ``dropout_p`` must be 0 here.

        Returns:
            Tensor: [B, heads, s, head_dim].
        """
        added = isinstance(mask, Tensor) and mask.is_floating_point()
        if not added or mask.is_cuda or kwargs.get("dropout_p"):
            return self._otherwise(query, key, value, mask=mask, **kwargs)
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
        scores += mask[:, None]
        return scores.softmax(dim=-1) @ value
