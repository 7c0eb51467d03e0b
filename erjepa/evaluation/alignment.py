"""How well a trained model aligns the two views of a pair, pair by pair."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchtune.modules import TransformerDecoder

from erjepa.datasets import Pair
from erjepa.objective.decoder import PackedDecoder
from erjepa.objective.distances import cosine_distance
from erjepa.packing import Attention, PairCollator


@torch.inference_mode()
def pair_cosines(
    decoder: TransformerDecoder,
    collator: PairCollator,
    pairs: Sequence[Pair],
    predictor: Tensor | None = None,
    attention: Attention = "dense",
) -> list[float]:
    """:math:`\\cos(p_i, z_i^a)` of each pair, read as in training.

    A model trained without a JEPA loss is read in the same way.

    Args:
        predictor: trained embeddings of the k predictor tokens, [k, H]; ``None``: those of the
            vocabulary.
    """
    table = decoder.tok_embeddings.weight
    model = PackedDecoder(decoder, attention=attention)
    if predictor is not None:
        model.predictor = nn.Parameter(predictor.to(table), requires_grad=False)
    output = model(collator(pairs).to(table.device))
    cosines = 1 - cosine_distance(output.predicted, output.target)
    return cosines.mean(dim=0).tolist()
