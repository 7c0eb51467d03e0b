"""The interface between the objective and models of any library.

A torchtune decoder is called part by part. A model of another library implements the same methods
itself, see :class:`~erjepa.models.transformers.TransformersDecoder`.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor
from torchtune.modules import TransformerDecoder

from erjepa.objective.attention import MaskedAttention
from erjepa.packing import Attention, attention_mask


@runtime_checkable
class Backend(Protocol):
    """A decoder that runs packed rows and generates text with its own library.

    Attributes:
        reads_packed_rows: False: rows must have one text each, with ``causal`` attention.
    """

    reads_packed_rows: bool

    def attend_by(self, attention: Attention) -> None:
        """Set the layers' kind of attention: ``flex``, ``dense``, or ``causal``, the library's own
        for rows of one text each.
        """

    def body(
        self, hidden: Tensor, end: Tensor, input_pos: Tensor, attention: Attention
    ) -> Tensor:
        """Return hidden states after the final norm, [R, L, H].

        Args:
            hidden: embeddings, [R, L, H]; for ``causal`` also tokens, int [R, L], of which a
                library may make more than embeddings.
            end: one past the last descendant of each token, int [R, L].
            input_pos: position of each token in its text, int [R, L].
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits of hidden states, [q, H] -> [q, V]."""

    def generate_greedy(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop_tokens: Sequence[int],
    ) -> list[list[int]]:
        """Return the new tokens of each prompt, including any after its stop token."""


class TorchtuneParts:
    """Calls a torchtune decoder part by part."""

    def __init__(self, decoder: TransformerDecoder) -> None:
        self._decoder = decoder

    def attend_by(self, attention: Attention) -> None:
        """Make the decoder's layers use :class:`MaskedAttention`, which goes by the type of a mask.

        Raises:
            ValueError: if the layers do not use torchtune's MultiHeadAttention, like Gemma 2's.
        """
        for layer in self._decoder.layers:
            call = getattr(layer.attn, "_attention_call", None)
            if call is None:
                raise ValueError(
                    f"model: {type(layer.attn).__name__} computes attention differently "
                    "and cannot read packed rows; choose a model whose layers have torchtune's "
                    "MultiHeadAttention"
                )
            if not isinstance(call, MaskedAttention):
                layer.attn._attention_call = MaskedAttention(call)

    def body(
        self, hidden: Tensor, end: Tensor, input_pos: Tensor, attention: Attention
    ) -> Tensor:
        """See :meth:`Backend.body`."""
        if not hidden.is_floating_point():
            hidden = self._decoder.tok_embeddings(hidden)
        mask = attention_mask(end, hidden.dtype, attention)
        for layer in self._decoder.layers:
            hidden = layer(hidden, mask=mask, input_pos=input_pos)
        return self._decoder.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """See :meth:`Backend.logits`."""
        return self._decoder.output(hidden)
