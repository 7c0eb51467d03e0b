"""Loss terms over the embeddings of all pairs of a step."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

_POINTS = 17  # of the trapezoidal rule, from 0 to _LAST; the integrand is even
_LAST = 3.0
_EPSILON = 1e-4


@dataclass(frozen=True)
class LossTerm:
    """A term of the embeddings that the distance compares, computed for each side separately."""

    # Its weight is the key ``loss.NAME_weight``, its metric ``NAME_loss``.
    name: ClassVar[str]
    weight: float

    def value(self, embeddings: Tensor, seed: int) -> Tensor:
        """Return the term for each of s sides, float32 [s].

        Args:
            embeddings: of n pairs, [s, n, H].
            seed: of random draws, the same on every rank.
        """
        raise NotImplementedError

    def flops(self, num_pairs: int, embed_dim: int) -> int:
        """Return the operations of matrix products for one side, forward and backward."""
        return 0


@dataclass(frozen=True)
class SIGReg(LossTerm):
    """Sketched isotropic Gaussian regularization of LeJEPA (Balestriero and LeCun, 2025).

    Embeddings with an isotropic Gaussian distribution have not collapsed, and their projection on
    any direction is standard normal. The Epps-Pulley statistic measures how far the characteristic
    function along a direction is from that of a standard normal. The term is its mean over random
    directions:

    .. math::
        n \\int \\Big| \\frac{1}{n} \\sum_j e^{i t x_j} - e^{-t^2 / 2} \\Big|^2
        e^{-t^2 / 2} \\, dt
    """

    name = "sigreg"
    slices: int  # random directions

    def value(self, embeddings: Tensor, seed: int) -> Tensor:
        embeddings = embeddings.float()
        generator = torch.Generator().manual_seed(seed)
        slices = torch.randn(embeddings.shape[-1], self.slices, generator=generator)
        slices = (slices / slices.norm(dim=0)).to(embeddings.device)
        t = torch.linspace(0, _LAST, _POINTS, device=embeddings.device)
        weights = torch.full_like(t, 2 * _LAST / (_POINTS - 1))
        weights[[0, -1]] /= 2
        normal = (-t.square() / 2).exp()
        angles = (embeddings @ slices)[..., None] * t  # [..., n, slices, points]
        real, imaginary = angles.cos().mean(-3), angles.sin().mean(-3)
        error = (real - normal).square() + imaginary.square()
        return (error @ (weights * normal)).mean(-1) * embeddings.shape[-2]

    def flops(self, num_pairs: int, embed_dim: int) -> int:
        # Forward, and backward to the embeddings: the directions get no gradient.
        return 4 * num_pairs * embed_dim * self.slices


@dataclass(frozen=True)
class Variance(LossTerm):
    """The variance term of VICReg (Bardes, Ponce and LeCun, 2022); 0 for a single embedding.

    .. math::
        \\frac{1}{H} \\sum_j \\max(0, 1 - \\sqrt{\\mathrm{Var}(z_j) + \\epsilon})
    """

    name = "variance"

    def value(self, embeddings: Tensor, seed: int) -> Tensor:
        n = embeddings.shape[-2]
        variance = embeddings.float().var(dim=-2, correction=min(1, n - 1))
        deviation = (variance + _EPSILON).sqrt()
        return (1 - deviation).clamp(min=0).mean(dim=-1) * (n > 1)


@dataclass(frozen=True)
class Covariance(LossTerm):
    """The covariance term of VICReg; 0 for a single embedding.

    .. math::
        \\frac{1}{H} \\sum_{j \\ne k} \\mathrm{Cov}(z_j, z_k)^2

    It is computed from the n x n products of embeddings rather than the H x H covariances:
    :math:`\\lVert X^T X \\rVert = \\lVert X X^T \\rVert`.
    """

    name = "covariance"

    def value(self, embeddings: Tensor, seed: int) -> Tensor:
        centered = embeddings.float() - embeddings.float().mean(dim=-2, keepdim=True)
        n, width = centered.shape[-2:]
        gram = centered @ centered.transpose(-1, -2)
        everything = gram.square().sum(dim=(-2, -1))
        variances = centered.square().sum(dim=-2).square().sum(dim=-1)
        return (everything - variances) / max(n - 1, 1) ** 2 / width

    def flops(self, num_pairs: int, embed_dim: int) -> int:
        return 6 * num_pairs**2 * embed_dim
