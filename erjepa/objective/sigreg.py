"""Sketched isotropic Gaussian regularization, SIGReg, of LeJEPA (Balestriero and LeCun, 2025).

Embeddings that are drawn from an isotropic Gaussian have not collapsed, and along any direction
they are standard normal. So embeddings of n pairs are projected on random directions, and along
each the statistic of Epps and Pulley says how far their characteristic function is from that of
a standard normal:

.. math::
    n \\int \\Big| \\frac{1}{n} \\sum_j e^{i t x_j} - e^{-t^2 / 2} \\Big|^2 e^{-t^2 / 2} \\, dt
"""

import torch
from torch import Tensor

_POINTS = 17  # of the trapezoidal rule, from 0 to _LAST; the integrand is even
_LAST = 3.0


def sigreg(embeddings: Tensor, num_slices: int, seed: int) -> Tensor:
    """The statistic, mean over random directions.

    Args:
        embeddings (Tensor): [..., n, H].
        num_slices (int): number of directions.
        seed (int): of the directions, the same on every device.

    Returns:
        Tensor: float32, [...].
    """
    embeddings = embeddings.float()
    generator = torch.Generator().manual_seed(seed)
    slices = torch.randn(embeddings.shape[-1], num_slices, generator=generator)
    slices = (slices / slices.norm(dim=0)).to(embeddings.device)
    t = torch.linspace(0, _LAST, _POINTS, device=embeddings.device)
    weights = torch.full_like(t, 2 * _LAST / (_POINTS - 1))
    weights[[0, -1]] /= 2
    normal = (-t.square() / 2).exp()
    angles = (embeddings @ slices)[..., None] * t  # [..., n, slices, points]
    error = (angles.cos().mean(-3) - normal).square() + angles.sin().mean(-3).square()
    return (error @ (weights * normal)).mean(-1) * embeddings.shape[-2]
