"""Measures of collapse: the rank of embeddings, and whether predictions find their targets."""

import torch.nn.functional as F
from torch import Tensor
from torch.linalg import svdvals

_EPSILON = 1e-7


def rankme(embeddings: Tensor) -> Tensor:
    """Return the effective rank of embeddings [n, H], RankMe (Garrido et al., 2023): the
    exponential of the entropy of the singular values divided by their sum. It ranges from 1, if
    all embeddings point in one direction, to the smaller of n and H.
    """
    values = svdvals(embeddings.float())
    shares = values / values.sum() + _EPSILON
    return (-(shares * shares.log()).sum()).exp()


def retrieval_at_1(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of pairs whose prediction is nearest by cosine to its own target, both
    [n, H]. By chance, and for collapsed embeddings, it is about 1/n.
    """
    similarity = F.normalize(predicted, dim=-1) @ F.normalize(target, dim=-1).T
    others = similarity.clone().fill_diagonal_(-float("inf"))
    return (similarity.diagonal() > others.amax(dim=-1)).float().mean()
