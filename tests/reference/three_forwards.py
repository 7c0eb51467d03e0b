"""A slow version of the objective: three forward passes per pair, without padding.

The full chat, the source view with predictor tokens, and the target view, each under a causal
mask, without packing or shared computation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchtune.modules import TransformerDecoder

from erjepa.datasets import Pair


def hidden_states(
    decoder: TransformerDecoder, tokens: list[int], predictor: dict[int, Tensor]
) -> Tensor:
    """Hidden states after the final norm of one sequence, [L, H]."""
    embeddings = decoder.tok_embeddings(torch.tensor(tokens))
    rows = [predictor.get(token, embeddings[i]) for i, token in enumerate(tokens)]
    hidden = torch.stack(rows)[None]
    for layer in decoder.layers:
        hidden = layer(hidden)
    return decoder.norm(hidden)[0]


def pair_losses(
    decoder: TransformerDecoder,
    pair: Pair,
    *,
    views: str,
    predictor_ids: list[int],
    predictor_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each target token, and JEPA loss (0 without views), of one pair."""
    predictor = {}
    if predictor_rows is not None:
        predictor = dict(zip(predictor_ids, predictor_rows, strict=True))
    full = [*pair.source, *pair.bridge, *pair.target]
    logits = decoder.output(hidden_states(decoder, full, {}))
    start = len(pair.source) + len(pair.bridge)
    lm = F.cross_entropy(
        logits[start - 1 : -1], torch.tensor(full[start:]), reduction="none"
    )
    if views == "none":
        return lm, torch.tensor(0.0)
    source = pair.source if views == "shared" else pair.source_view
    p = hidden_states(decoder, [*source, *predictor_ids], predictor)[-1]
    z = hidden_states(decoder, list(pair.target_view), {})[-1]
    return lm, 1 - (p @ z) / (p.norm() * z.norm())


def reference_loss(
    decoder: TransformerDecoder,
    pairs: list[Pair],
    *,
    lm_weight: float = 1.0,
    jepa_weight: float = 1.0,
    **objective,
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, mean next-token loss and mean JEPA loss of all pairs, with gradient.

    ``objective`` is that of :func:`pair_losses`.
    """
    each = [pair_losses(decoder, pair, **objective) for pair in pairs]
    lm = torch.cat([token_losses for token_losses, _ in each]).mean()
    jepa = torch.stack([distance for _, distance in each]).mean()
    return lm_weight * lm + jepa_weight * jepa, lm, jepa
