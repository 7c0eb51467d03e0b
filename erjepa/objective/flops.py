"""Floating-point operations of a training step, counted from the model's structure.

Counted: the matrix products of all linear layers in the decoder's layers (frozen weights: forward
pass and gradient of the input; trainable weights: also their own gradient), of experts only those
that a token is sent to; attention by the area of its mask, as if every layer had it, without a
window; the output projection at the positions that predict labels. A multiply-add is two
operations. Tokens that paths or pairs of a row share are computed, and so counted, once: a step's
count depends on which pairs share a row.

Not counted: embeddings, norms, rotary embeddings, softmax, element-wise products, the states of
linear attention, the optimizer, the penalty on adapters, the memory, padding, the norms of DoRA,
and what activation checkpointing recomputes. Loss terms over all pairs of a step are counted once,
though every rank computes them.
"""

from torch import nn
from torchtune.modules import TransformerDecoder

from erjepa.packing import PackedBatch


class StepFlops:
    """Counts the operations of a forward and backward pass; the model may be sharded."""

    def __init__(self, decoder: TransformerDecoder) -> None:
        self._per_token = self._per_token_forward = 0
        # The experts of a layer are one tensor of three dimensions.
        shares = {2: 1.0, 3: getattr(decoder, "active_experts", 1.0)}
        for weight in decoder.layers.parameters():
            size = round(weight.numel() * shares.get(weight.ndim, 0.0))
            self._per_token += (6 if weight.requires_grad else 4) * size
            self._per_token_forward += 2 * size
        # An output projection tied to the embeddings has no weight of its own.
        output = decoder.output
        own = output.parameters() if isinstance(output, nn.Module) else []
        weights = [w for w in own if w.ndim == 2] or [decoder.tok_embeddings.weight]
        self._per_projected = sum(
            (6 if w.requires_grad else 4) * w.numel() for w in weights
        )
        # Per layer two products, scores and weighted values: once forward and twice backward.
        attention_width = decoder.num_heads * decoder.head_dim
        self._per_attended = 12 * attention_width * len(decoder.layers)

    def __call__(self, batch: PackedBatch) -> int:
        """Return the operations of one forward and backward pass over ``batch``."""
        return (
            self._per_token * batch.num_tokens
            + self._per_projected * batch.num_projected
            + self._per_attended * batch.attention_area
        )

    def forward(self, batch: PackedBatch) -> int:
        """Return the operations of one forward pass over ``batch``, without logits."""
        return (
            self._per_token_forward * batch.num_tokens
            + self._per_attended // 3 * batch.attention_area
        )
