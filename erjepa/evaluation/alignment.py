"""Computes, for each pair, the cosines of its views and the loss of its target."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torchtune.modules import TransformerDecoder
from torchtune.modules.transforms import Transform

from erjepa.configs import Config
from erjepa.datasets import Pair, predictor_token_ids
from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.distances import cosine_distance
from erjepa.objective.loss import JEPALoss
from erjepa.packing import Attention, PairCollator, layout_of
from erjepa.training.model.build import attention_for


@torch.inference_mode()
def pair_cosines(
    model: PackedDecoder, collator: PairCollator, pairs: Sequence[Pair]
) -> list[dict[str, float]]:
    """Compute the cosines of each pair, with the views of training even without a JEPA loss.

    ``cosine`` compares prediction and target, :math:`\\cos(p_i, z_i^a)`, which the loss aligns.
    ``cosine_of_input`` compares source and target, :math:`\\cos(z_i^u, z_i^a)`, as in the caption
    of the paper's figure; it is missing with ``views: spans`` and ``target_to_source``.
    """
    batch = collator(pairs)
    batch = replace(batch, label_pos=batch.label_pos[:0])  # no logits
    output = model(batch.to(model.decoder.tok_embeddings.weight.device))
    paired = (1 - cosine_distance(output.predicted, output.target)).mean(dim=0)
    cosines = [{"cosine": cosine} for cosine in paired.tolist()]
    reads_both_sides = collator.views in ("shared", "standalone")
    if reads_both_sides and collator.direction != "target_to_source":
        of_input = 1 - cosine_distance(output.source, output.target[0])
        for fields, cosine in zip(cosines, of_input.tolist(), strict=True):
            fields["cosine_of_input"] = cosine
    return cosines


@torch.inference_mode()
def target_losses(
    model: PackedDecoder, collator: PairCollator, pairs: Sequence[Pair]
) -> list[dict[str, float]]:
    """Return the ``target_loss`` of each pair, the mean cross-entropy of its target in nats per
    token, and ``target_tokens``, the number of tokens including the end of turn.
    """
    batch = collator.without_views()(pairs)
    batch = batch.to(model.decoder.tok_embeddings.weight.device)
    _, lm_of_pairs = JEPALoss(jepa_weight=0.0)(model(batch), batch, 1, 1)
    counts = batch.labels_of_pairs
    columns = zip((lm_of_pairs / counts).tolist(), counts.tolist(), strict=True)
    return [{"target_loss": loss, "target_tokens": n} for loss, n in columns]


class PairReader:
    """Computes the fields that ``alignment`` and ``target_loss`` add to predictions."""

    def __init__(
        self,
        cfg: Config,
        decoder: TransformerDecoder,
        tokenizer: Transform,
        attention: Attention,
    ) -> None:
        self._cfg = cfg
        attention = attention_for(decoder, cfg, attention)
        self._model = PackedDecoder(decoder, attention=attention)
        vocab_size = self._model.vocab_size
        collator = PairCollator(
            **layout_of(cfg),
            predictor_ids=predictor_token_ids(
                tokenizer, cfg.num_predictor_tokens, vocab_size, cfg.predictor_tokens
            ),
            pad_id=tokenizer.pad_id,
            row_length=cfg.row_length,
            attention=attention,
        )
        # Takes the most tokens that are read of a pair.
        self.collator = collator if cfg.alignment else collator.without_views()

    def set_predictor(self, rows: Tensor | None) -> None:
        """Set the trained embeddings of the k predictor tokens, [k, H]; ``None``: those of the
        vocabulary.
        """
        if rows is not None:
            table = self._model.decoder.tok_embeddings.weight
            rows = nn.Parameter(rows.to(table), requires_grad=False)
        self._model.predictor = rows

    def __call__(self, pairs: Sequence[Pair]) -> list[dict[str, float]]:
        """Return the cosines, loss and number of tokens of each pair that the config asks for."""
        model, collator = self._model, self.collator
        read: list[dict[str, float]] = [{} for _ in pairs]
        if self._cfg.alignment:
            read = pair_cosines(model, collator, pairs)
        if self._cfg.target_loss:
            size = self._cfg.batch_size  # the logits of all labels are held at once
            for i in range(0, len(pairs), size):
                part = slice(i, i + size)
                losses = target_losses(model, collator, pairs[part])
                for fields, loss in zip(read[part], losses, strict=True):
                    fields.update(loss)
        return read
