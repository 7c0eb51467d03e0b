"""How far embeddings are from collapse: their rank, and whether pairs find each other."""

import torch.nn.functional as F
from torch import Tensor
from torch.linalg import svdvals

_EPSILON = 1e-7


def rankme(embeddings: Tensor) -> Tensor:
    """Effective rank of embeddings [n, H], RankMe (Garrido et al., 2023): the exponential of the
    entropy of the singular values, divided by their sum. From 1, where all embeddings point one
    way, to the smaller of n and H.
    """
    values = svdvals(embeddings.float())
    shares = values / values.sum() + _EPSILON
    return (-(shares * shares.log()).sum()).exp()


def retrieval_at_1(predicted: Tensor, target: Tensor) -> Tensor:
    """Fraction of pairs whose prediction, [n, H], is nearest by cosine to its own target, [n, H].

    By chance, and where embeddings have collapsed, it is about 1/n.
    """
    similarity = F.normalize(predicted, dim=-1) @ F.normalize(target, dim=-1).T
    others = similarity.clone().fill_diagonal_(-float("inf"))
    return (similarity.diagonal() > others.amax(dim=-1)).float().mean()
