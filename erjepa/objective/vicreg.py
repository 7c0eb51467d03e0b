"""Two terms of VICReg (Bardes, Ponce and LeCun, 2022) against collapse, of n embeddings.

The third, which keeps the two sides of a pair together, is the distance. One embedding has
neither variance nor covariance, and both terms are 0, with a gradient of 0.
"""

from torch import Tensor

_EPSILON = 1e-4


def variance_term(embeddings: Tensor) -> Tensor:
    """:math:`\\frac{1}{H} \\sum_j \\max(0, 1 - \\sqrt{\\mathrm{Var}(z_j) + \\epsilon})`.

    Args:
        embeddings (Tensor): [..., n, H].

    Returns:
        Tensor: 0 where every dimension has a standard deviation of 1 or more, float32 [...].
    """
    n = embeddings.shape[-2]
    variance = embeddings.float().var(dim=-2, correction=min(1, n - 1))
    deviation = (variance + _EPSILON).sqrt()
    return (1 - deviation).clamp(min=0).mean(dim=-1) * (n > 1)


def covariance_term(embeddings: Tensor) -> Tensor:
    """:math:`\\frac{1}{H} \\sum_{j \\ne k} \\mathrm{Cov}(z_j, z_k)^2`.

    Of n embeddings, fewer than dimensions, products of n x n say the same as those of H x H:
    :math:`\\lVert X^T X \\rVert = \\lVert X X^T \\rVert`.

    Args:
        embeddings (Tensor): [..., n, H].

    Returns:
        Tensor: 0 where dimensions do not correlate, float32 [...].
    """
    centered = embeddings.float() - embeddings.float().mean(dim=-2, keepdim=True)
    n, width = centered.shape[-2:]
    gram = centered @ centered.transpose(-1, -2)
    everything = gram.square().sum(dim=(-2, -1))
    variances = centered.square().sum(dim=-2).square().sum(dim=-1)
    return (everything - variances) / max(n - 1, 1) ** 2 / width
