"""Distances of predictions from their targets for n pairs, [..., n, H] and [..., n, H].

Each function returns float32 of shape [..., n].
"""

import torch.nn.functional as F
from torch import Tensor


def cosine_distance(predicted: Tensor, target: Tensor) -> Tensor:
    """:math:`d(p, z) = 1 - \\cos(p, z)`, between 0 and 2."""
    return 1 - F.cosine_similarity(predicted.float(), target.float(), dim=-1)


def l2_distance(predicted: Tensor, target: Tensor) -> Tensor:
    """:math:`d(p, z) = \\lVert p - z \\rVert_2`; its gradient is 0 where they are equal."""
    return (predicted.float() - target.float()).norm(dim=-1)


def mse_distance(predicted: Tensor, target: Tensor) -> Tensor:
    """:math:`d(p, z) = \\lVert p - z \\rVert_2^2 / H`."""
    return (predicted.float() - target.float()).square().mean(dim=-1)


def infonce_distance(predicted: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Cross-entropy, in nats, of identifying a pair's target among those of all n pairs.

    .. math::
        d(p_i, z_i) = -\\log \\frac{\\exp(\\cos(p_i, z_i) / \\tau)}
        {\\sum_j \\exp(\\cos(p_i, z_j) / \\tau)}

    (van den Oord et al., 2018). It is :math:`\\log n` if targets cannot be told apart.
    """
    predicted = F.normalize(predicted.float(), dim=-1)
    target = F.normalize(target.float(), dim=-1)
    similarity = predicted @ target.transpose(-1, -2) / temperature
    paired = similarity.diagonal(dim1=-2, dim2=-1)
    return similarity.logsumexp(dim=-1) - paired
