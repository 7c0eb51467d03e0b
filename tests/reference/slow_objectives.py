"""Slow versions of the objectives: a forward pass for each view of each pair, then loops."""

import torch
from torch import Tensor

from erjepa.datasets import Pair
from tests.reference.three_forwards import hidden_states


def embeddings(
    decoder: torch.nn.Module,
    pair: Pair,
    *,
    views: str,
    predictor_ids: list[int],
    predictor_rows: Tensor,
    direction: str = "source_to_target",
    predictor_position: str = "behind",
    steps: list[tuple[int, int]] | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Prediction and target, [H] each, of each comparison of one pair."""
    if steps is not None:
        full = [*pair.source, *pair.bridge, *pair.target]
        hidden = hidden_states(decoder, full, {})
        moves = [hidden[j] - hidden[i] for i, j in steps]
        return [(sum(moves[:3]), sum(moves[3:]))]
    predictor = dict(zip(predictor_ids, predictor_rows, strict=True))

    def embed(tokens):
        return hidden_states(decoder, list(tokens), {})[-1]

    def predict(tokens):
        tokens = list(tokens)
        if predictor_position == "front":
            return hidden_states(
                decoder, [tokens[0], *predictor_ids, *tokens[1:]], predictor
            )[-1]
        return hidden_states(decoder, [*tokens, *predictor_ids], predictor)[-1]

    source = pair.source if views == "shared" else pair.source_view
    forth = (predict(source), embed(pair.target_view))
    back = (predict(pair.target_view), embed(source))
    return {
        "source_to_target": [forth],
        "target_to_source": [back],
        "both": [forth, back],
    }[direction]


def distances(
    predicted: list[Tensor], target: list[Tensor], distance: str, temperature: float
) -> list[Tensor]:
    """The distance of each pair; InfoNCE contrasts it with the others of the list."""
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


def sigreg(embeddings: list[Tensor], num_slices: int, seed: int) -> Tensor:
    """LeJEPA's statistic, slice by slice, with complex numbers and both halves of the integral."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(len(embeddings[0]), num_slices, generator=generator)
    statistics = []
    for direction in directions.T:
        direction = direction / (direction @ direction).sqrt()
        places = torch.stack([z @ direction for z in embeddings])
        t = torch.linspace(-3, 3, 33)
        found = torch.exp(1j * t * places[:, None]).sum(dim=0) / len(places)
        normal = torch.exp(-(t**2) / 2)
        apart = (found - normal).abs() ** 2 * normal
        statistics.append(len(places) * torch.trapezoid(apart, t))
    return sum(statistics) / num_slices


def vicreg(embeddings: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Variance and covariance terms, from the covariance matrix; 0 for one embedding."""
    if len(embeddings) == 1:
        return torch.zeros(()), torch.zeros(())
    covariance = torch.stack(embeddings).T.cov()
    width = len(covariance)
    variance = sum((1 - (v + 1e-4).sqrt()).relu() for v in covariance.diag()) / width
    others = covariance[~torch.eye(width, dtype=torch.bool)]
    return variance, (others**2).sum() / width


def reference_loss(
    decoder: torch.nn.Module,
    pairs: list[Pair],
    *,
    lm_weight: float = 1.0,
    jepa_weight: float = 1.0,
    distance: str = "cosine",
    temperature: float = 0.07,
    sigreg_weight: float = 0.0,
    sigreg_slices: int = 0,
    variance_weight: float = 0.0,
    covariance_weight: float = 0.0,
    steps: list[list[tuple[int, int]]] | None = None,
    **layout,
) -> tuple[Tensor, Tensor]:
    """Loss of all pairs, and the distance of each, [n]; ``layout`` as in ``embeddings``."""
    lm = []
    for pair in pairs:
        full = [*pair.source, *pair.bridge, *pair.target]
        logits = decoder.output(hidden_states(decoder, full, {})).log_softmax(dim=-1)
        start = len(full) - len(pair.target)
        lm += [-logits[i - 1, full[i]] for i in range(start, len(full))]
    of_each = steps or [None] * len(pairs)
    compared = [
        embeddings(decoder, pair, steps=its_steps, **layout)
        for pair, its_steps in zip(pairs, of_each, strict=True)
    ]
    by_comparison = [
        torch.stack(distances(*zip(*pairs_of, strict=True), distance, temperature))
        for pairs_of in zip(*compared, strict=True)
    ]
    each = sum(by_comparison) / len(by_comparison)
    loss = lm_weight * sum(lm) / len(lm) + jepa_weight * each.mean()
    sides = [
        list(side)
        for pairs_of in zip(*compared, strict=True)
        for side in zip(*pairs_of, strict=True)
    ]
    for side in sides:
        if sigreg_weight:
            seed = sum(pair.example_id for pair in pairs)
            spread = sigreg(side, sigreg_slices, seed)
            loss = loss + sigreg_weight * spread / len(sides)
        variance, covariance = vicreg(side)
        loss = loss + variance_weight * variance / len(sides)
        loss = loss + covariance_weight * covariance / len(sides)
    return loss, each
