"""Floating-point operations of a training step, counted from the model's structure.

Counted: the matrix products of every linear layer in the decoder's layers (frozen weights:
forward and gradient of the input; trained weights: their own gradient as well), attention by
the area of its mask, the output projection at the positions that predict labels only. A
multiply-add is two operations. Each is of what is computed: a token that several paths or
pairs of a row begin with counts once, so a step's count depends on which pairs share a row.

Not counted: embeddings, norms, rotary embeddings, softmax, element-wise products, the
optimizer, the memory, padding, and what activation checkpointing computes again. Terms of the
loss that look at all pairs of a step are counted once, though every rank computes them.
"""

from torchtune.modules import TransformerDecoder

from erjepa.packing import PackedBatch


class StepFlops:
    """Counts the operations of a forward and backward pass; the model may be sharded."""

    def __init__(self, decoder: TransformerDecoder) -> None:
        frozen, trained = 0, 0
        for weight in decoder.layers.parameters():
            if weight.ndim == 2:
                frozen += 0 if weight.requires_grad else weight.numel()
                trained += weight.numel() if weight.requires_grad else 0
        self._per_token = 4 * frozen + 6 * trained
        self._per_token_forward = 2 * (frozen + trained)
        # Tied to the embeddings, it does not have its own weight.
        output = getattr(decoder.output, "weight", decoder.tok_embeddings.weight)
        self._per_projected = (6 if output.requires_grad else 4) * output.numel()
        # Scores and their use, forward once and backward twice, in every layer.
        attention_width = decoder.num_heads * decoder.head_dim
        self._per_attended = 12 * attention_width * len(decoder.layers)

    def __call__(self, batch: PackedBatch) -> int:
        """Operations of one forward and backward pass over ``batch``."""
        return (
            self._per_token * batch.num_tokens
            + self._per_projected * batch.num_projected
            + self._per_attended * batch.attention_area
        )

    def forward(self, batch: PackedBatch) -> int:
        """Operations of one forward pass over ``batch`` up to its embeddings."""
        return (
            self._per_token_forward * batch.num_tokens
            + self._per_attended // 3 * batch.attention_area
        )
