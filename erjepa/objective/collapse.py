"""How far embeddings are from collapse: their rank, and whether pairs find each other."""

import torch.nn.functional as F
from torch import Tensor
from torch.linalg import svdvals

_EPSILON = 1e-7


def rankme(embeddings: Tensor) -> Tensor:
    """Effective rank, RankMe (Garrido et al., 2023): the exponential of the entropy of the
    singular values, divided by their sum.

    Args:
        embeddings: [n, H].

    Returns:
        From 1, where all embeddings point one way, to the smaller of n and H; scalar.
    """
    values = svdvals(embeddings.float())
    shares = values / values.sum() + _EPSILON
    return (-(shares * shares.log()).sum()).exp()


def retrieval_at_1(predicted: Tensor, target: Tensor) -> Tensor:
    """The share of pairs whose prediction is nearest, by cosine, to its own target.

    By chance, and where embeddings have collapsed, it is about 1/n.

    Args:
        predicted: [n, H].
        target: [n, H].

    Returns:
        Scalar.
    """
    similarity = F.normalize(predicted, dim=-1) @ F.normalize(target, dim=-1).T
    others = similarity.clone().fill_diagonal_(-float("inf"))
    return (similarity.diagonal() > others.amax(dim=-1)).float().mean()
