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
    [n, H]. A prediction whose own target is nearest together with k - 1 others counts 1/k; so
    collapsed embeddings have 1/n, which is also the value by chance.

    Rounding may break ties: the embeddings of equal texts can differ between packed rows. Such a
    prediction counts 0 or 1, about 1/k on average.
    """
    similarity = F.normalize(predicted, dim=-1) @ F.normalize(target, dim=-1).T
    own = similarity.diagonal()[:, None]
    is_nearest = (similarity <= own).all(dim=-1)
    return (is_nearest / (similarity == own).sum(dim=-1)).mean()
