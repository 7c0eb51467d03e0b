"""The slow obvious objectives: each pair's embeddings by forwards of its own, then loops."""

import torch
from torch import Tensor

from erjepa.datasets import Pair
from tests.reference.three_forwards import hidden_states, pair_losses


def embeddings(
    decoder: torch.nn.Module,
    pair: Pair,
    *,
    views: str,
    predictor_ids: list[int],
    predictor_rows: Tensor,
) -> tuple[Tensor, Tensor]:
    """:math:`p` and :math:`z^a` of one pair, [H] each."""
    predictor = dict(zip(predictor_ids, predictor_rows, strict=True))
    source = pair.source if views == "shared" else pair.source_view
    p = hidden_states(decoder, [*source, *predictor_ids], predictor)[-1]
    return p, hidden_states(decoder, list(pair.target_view), {})[-1]


def distances(
    predicted: list[Tensor], target: list[Tensor], distance: str, temperature: float
) -> list[Tensor]:
    """The distance of each pair, among those of the list."""
    if distance == "l2":
        return [
            sum((p - z) ** 2).sqrt() for p, z in zip(predicted, target, strict=True)
        ]
    if distance == "mse":
        return [
            sum((p - z) ** 2) / len(p) for p, z in zip(predicted, target, strict=True)
        ]
    cosine = [[p @ z / (p.norm() * z.norm()) for z in target] for p in predicted]
    if distance == "cosine":
        return [1 - row[i] for i, row in enumerate(cosine)]
    found = []
    for i, row in enumerate(cosine):
        scores = [(similarity / temperature).exp() for similarity in row]
        found.append(-(scores[i] / sum(scores)).log())
    return found


def reference_loss(
    decoder: torch.nn.Module,
    pairs: list[Pair],
    *,
    lm_weight: float = 1.0,
    jepa_weight: float = 1.0,
    distance: str = "cosine",
    temperature: float = 0.07,
    **layout,
) -> tuple[Tensor, Tensor]:
    """Loss of all pairs, and the distance of each, [n]; ``layout`` as for embeddings."""
    lm = torch.cat([pair_losses(decoder, pair, **layout)[0] for pair in pairs]).mean()
    predicted, target = zip(
        *(embeddings(decoder, pair, **layout) for pair in pairs), strict=True
    )
    each = torch.stack(distances(predicted, target, distance, temperature))
    return lm_weight * lm + jepa_weight * each.mean(), each
