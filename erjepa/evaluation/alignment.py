"""What a trained model makes of given pairs, pair by pair: how it aligns the two views, and the
loss of the target.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchtune.modules import TransformerDecoder

from erjepa.datasets import Pair
from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.distances import cosine_distance
from erjepa.objective.loss import JEPALoss
from erjepa.packing import Attention, PairCollator


@torch.inference_mode()
def pair_cosines(
    decoder: TransformerDecoder,
    collator: PairCollator,
    pairs: Sequence[Pair],
    predictor: Tensor | None = None,
    attention: Attention = "dense",
) -> list[dict[str, float]]:
    """Cosines of each pair, read as in training; without a JEPA loss in the same way.

    ``cosine`` is that of prediction and target, :math:`\\cos(p_i, z_i^a)`, which the loss aligns;
    ``cosine_of_input`` that of source and target, :math:`\\cos(z_i^u, z_i^a)`, which the caption
    of the paper's figure names. Spans and targets that predict have no such second one.

    Args:
        predictor: trained embeddings of the k predictor tokens, [k, H]; ``None``: those of the
            vocabulary.
    """
    table = decoder.tok_embeddings.weight
    model = PackedDecoder(decoder, attention=attention)
    if predictor is not None:
        model.predictor = nn.Parameter(predictor.to(table), requires_grad=False)
    output = model(collator(pairs).to(table.device))
    cosines = {
        "cosine": (1 - cosine_distance(output.predicted, output.target)).mean(dim=0)
    }
    reads_both_sides = collator.views in ("shared", "standalone")
    if reads_both_sides and collator.direction != "target_to_source":
        cosines["cosine_of_input"] = 1 - cosine_distance(
            output.source, output.target[0]
        )
    columns = zip(*(values.tolist() for values in cosines.values()), strict=True)
    return [dict(zip(cosines, values, strict=True)) for values in columns]


@torch.inference_mode()
def target_losses(
    decoder: TransformerDecoder,
    collator: PairCollator,
    pairs: Sequence[Pair],
    attention: Attention = "dense",
) -> list[dict[str, float]]:
    """``target_loss`` of each pair, the mean cross-entropy of its target's tokens in nats, and
    ``target_tokens``, their number, with the end of turn.
    """
    batch = collator.without_views()(pairs).to(decoder.tok_embeddings.weight.device)
    output = PackedDecoder(decoder, attention=attention)(batch)
    _, losses = JEPALoss(jepa_weight=0.0)(output, batch, 1, 1)
    counts = batch.labels_of_pairs
    columns = zip((losses.lm / counts).tolist(), counts.tolist(), strict=True)
    return [{"target_loss": loss, "target_tokens": n} for loss, n in columns]
