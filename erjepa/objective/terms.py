"""Loss terms over the embeddings of all pairs of a step.

A term is a class with the decorator :func:`loss_term`. Its fields are keys of ``loss`` and
arguments of :class:`~erjepa.objective.JEPALoss`; the first is its weight, 0 (disabled) by default.
"""

from dataclasses import dataclass, fields
from typing import Annotated, TypeVar

import torch
from pydantic import Field
from torch import Tensor

_POINTS = 17  # of the trapezoidal rule, from 0 to _LAST; the integrand is even
_LAST = 3.0
_EPSILON = 1e-4

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class LossTerm:
    """A term of the embeddings that the distance compares, computed for each side separately."""

    @property
    def weight(self) -> float:
        """Weight of the term in the loss."""
        return getattr(self, fields(self)[0].name)

    @property
    def metric(self) -> str:
        """Name of the metric, such as ``sigreg_loss`` for ``sigreg_weight``."""
        return fields(self)[0].name.removesuffix("_weight") + "_loss"

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


TERMS: list[type[LossTerm]] = []
Term = TypeVar("Term", bound=type[LossTerm])


def loss_term(term: Term) -> Term:
    """Register a term.

    Raises:
        ValueError: if another term has a field of the same name.
    """
    taken = {field.name: other.__name__ for other in TERMS for field in fields(other)}
    for field in fields(term):
        if field.name in taken:
            raise ValueError(
                f"{term.__name__}: loss.{field.name} is a key of {taken[field.name]}; "
                "rename the field"
            )
    TERMS.append(term)
    return term


@loss_term
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

    sigreg_weight: Weight = 0.0
    sigreg_slices: Annotated[int, Field(ge=1, lt=100_000)] = 256  # random directions

    def value(self, embeddings: Tensor, seed: int) -> Tensor:
        embeddings = embeddings.float()
        generator = torch.Generator().manual_seed(seed)
        slices = torch.randn(
            embeddings.shape[-1], self.sigreg_slices, generator=generator
        )
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
        return 6 * num_pairs * embed_dim * self.sigreg_slices


@loss_term
@dataclass(frozen=True)
class Variance(LossTerm):
    """The variance term of VICReg (Bardes, Ponce and LeCun, 2022); 0 for a single embedding.

    .. math::
        \\frac{1}{H} \\sum_j \\max(0, 1 - \\sqrt{\\mathrm{Var}(z_j) + \\epsilon})
    """

    variance_weight: Weight = 0.0

    def value(self, embeddings: Tensor, seed: int) -> Tensor:
        n = embeddings.shape[-2]
        variance = embeddings.float().var(dim=-2, correction=min(1, n - 1))
        deviation = (variance + _EPSILON).sqrt()
        return (1 - deviation).clamp(min=0).mean(dim=-1) * (n > 1)


@loss_term
@dataclass(frozen=True)
class Covariance(LossTerm):
    """The covariance term of VICReg; 0 for a single embedding.

    .. math::
        \\frac{1}{H} \\sum_{j \\ne k} \\mathrm{Cov}(z_j, z_k)^2

    It is computed from the n x n products of embeddings rather than the H x H covariances:
    :math:`\\lVert X^T X \\rVert = \\lVert X X^T \\rVert`.
    """

    covariance_weight: Weight = 0.0

    def value(self, embeddings: Tensor, seed: int) -> Tensor:
        centered = embeddings.float() - embeddings.float().mean(dim=-2, keepdim=True)
        n, width = centered.shape[-2:]
        gram = centered @ centered.transpose(-1, -2)
        everything = gram.square().sum(dim=(-2, -1))
        variances = centered.square().sum(dim=-2).square().sum(dim=-1)
        return (everything - variances) / max(n - 1, 1) ** 2 / width

    def flops(self, num_pairs: int, embed_dim: int) -> int:
        return 6 * num_pairs**2 * embed_dim
