"""The forward pass over packed pairs: logits for labels, embeddings at the ends of views."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchtune.modules import TransformerDecoder

from erjepa.objective.attention import raise_recompile_limit
from erjepa.objective.backend import Backend, TorchtuneParts
from erjepa.packing import Attention, PackedBatch


class PackedOutput(NamedTuple):
    """Logits and embeddings of n pairs, each with m comparisons: one, or one per direction.

    Without views there are only logits, and n is 0. H: embedding width, V: vocabulary size.
    """

    logits: Tensor  # [q, V], at the q positions that predict labels
    source: Tensor  # z^u, [n, H]
    # p = Pred(z^u), [m, n, H]; Pred(z^a) from target to source; for spans the predicting sum
    predicted: Tensor
    target: Tensor  # what p is compared with, z^a, [m, n, H]


class PackedDecoder(nn.Module):
    """A torchtune decoder that reads packed pairs.

    It calls the decoder's parts itself: the output projection runs once for each position that
    predicts labels, and embeddings are the hidden states after the final norm. Tokens that pairs of
    a row share are computed once, under one LoRA dropout mask.

    The k predictor tokens are reserved tokens of the vocabulary. LoRA keeps embeddings frozen, so to
    train them, their k rows are a parameter of this module, which replaces the embeddings in the
    forward pass. They are training state: inference never sees a predictor token, and exported
    weights do not contain them.

    Args:
        num_trained_tokens: k, or 0 to leave the predictor tokens as they are in the vocabulary.
    """

    def __init__(
        self,
        decoder: TransformerDecoder,
        *,
        num_trained_tokens: int = 0,
        trainable_dtype: torch.dtype | None = None,
        attention: Attention = "dense",
    ) -> None:
        super().__init__()
        raise_recompile_limit()
        self.decoder = decoder
        self.attend_by(attention)
        self.predictor = None
        if num_trained_tokens:
            table = decoder.tok_embeddings.weight
            self.predictor = nn.Parameter(
                torch.empty(
                    num_trained_tokens,
                    table.shape[1],
                    dtype=trainable_dtype or table.dtype,
                    device=table.device,
                )
            )

    @property
    def embed_dim(self) -> int:
        """Width of an embedding, H."""
        return self.decoder.tok_embeddings.embedding_dim

    @property
    def vocab_size(self) -> int:
        """Number of tokens that have an embedding, V."""
        return self.decoder.tok_embeddings.num_embeddings

    @property
    def num_positions(self) -> int:
        """Maximum number of tokens in a path."""
        return self.decoder.max_seq_len

    def attend_by(self, attention: Attention) -> None:
        decoder = self.decoder
        backend = decoder if isinstance(decoder, Backend) else TorchtuneParts(decoder)
        backend.attend_by(attention)
        self._body, self._logits = backend.body, backend.logits
        self.attention = attention

    def forward(self, batch: PackedBatch, *, from_tokens: bool = False) -> PackedOutput:
        """Return logits in the order of ``batch.label_pos``, embeddings in the order of pairs.

        Args:
            from_tokens: pass the decoder tokens rather than embeddings, which ``causal`` attention
                always does without trained predictor tokens.
        """
        if self.attention == "causal" and self.predictor is None:
            from_tokens = True
        inputs = batch.tokens if from_tokens else self._embed(batch)
        hidden = self._body(inputs, batch.end, batch.input_pos, self.attention)
        hidden = hidden.flatten(0, 1)
        if len(batch.steps):
            start, stop = hidden[batch.steps].float().unbind(dim=3)  # [n, 2, 3, H]
            predicted, target = (stop - start).sum(dim=2).unbind(dim=1)
            predicted, target = predicted[None], target[None]
        else:
            predicted, target = hidden[batch.predicted_pos], hidden[batch.target_pos]
        return PackedOutput(
            logits=self._logits(hidden[batch.label_pos]),
            # Only addresses are made of it, which no loss trains. Detached, because activation
            # offloading fails if the backward pass leaves a tensor unused.
            source=hidden.detach()[batch.source_pos],
            predicted=predicted,
            target=target,
        )

    def initial_predictor(
        self, weights: Mapping[str, Tensor], ids: list[int]
    ) -> Tensor:
        """Return the initial embeddings of the predictor tokens, [k, H]: those of tokens ``ids``.

        Call it before the decoder is sharded; ``weights`` are the decoder's, by name.
        """
        table = self.decoder.tok_embeddings
        names = (n for n, p in self.decoder.named_parameters() if p is table.weight)
        weight = {"weight": weights[next(names)]}
        return torch.func.functional_call(
            table, weight, torch.tensor(ids, dtype=torch.int64)
        )

    def _embed(self, batch: PackedBatch) -> Tensor:
        hidden = self.decoder.tok_embeddings(batch.tokens)
        if self.predictor is None:
            return hidden
        rows = self.predictor.to(hidden.dtype)[batch.predictor_index]
        flat = hidden.flatten(0, 1).index_copy(0, batch.predictor_pos, rows)
        return flat.view_as(hidden)
