"""An exact top-k: `torch.topk` leaves the order of equal values open, replay may not."""

import math

import torch
from torch import Tensor


def top_slots(values: Tensor, k: int) -> Tensor:
    """The k largest values of every row, descending, ties to the lower index.

    The result is a function of the values alone, so every rank that holds the same values
    selects the same slots.

    Args:
        values (Tensor): comparable values without NaN, shape [B, N].
        k (int): how many to take per row, 0 <= k <= N.

    Returns:
        Tensor: int64 indices into the rows, shape [B, k].
    """
    indices = top_set(values, k)
    # The indices ascend, and a stable sort keeps equal values in that order.
    order = values.gather(1, indices).sort(dim=1, descending=True, stable=True).indices
    return indices.gather(1, order)


def top_set(values: Tensor, k: int) -> Tensor:
    """The same indices as ``top_slots``, ascending.

    Reads a long row once, for the maximum of each of its blocks: a block that is not among
    the k with the largest maxima, ties to the lower block, has k values before its own.
    """
    length = values.shape[1]
    block = math.isqrt(length // k) if k else 1
    if block == 1:
        return _top_set(values, k)
    whole = length - length % block
    maxima = values[:, :whole].unflatten(1, (-1, block)).amax(dim=2)
    starts = _top_set(maxima, k) * block
    columns = torch.arange(length, device=values.device)
    inside = (starts[:, :, None] + columns[:block]).flatten(1)
    rest = columns[whole:].expand(len(values), -1)
    candidates = torch.cat([inside, rest], dim=1)
    return candidates.gather(1, _top_set(values.gather(1, candidates), k))


def _top_set(values: Tensor, k: int) -> Tensor:
    """The same without blocks: all values above the k-th largest, then the first equal."""
    if k == 0:
        return torch.empty(values.shape[0], 0, dtype=torch.int64, device=values.device)
    threshold = values.topk(k, dim=1).values[:, -1:]
    above = values > threshold
    level = values == threshold
    room = k - above.sum(dim=1, keepdim=True)
    taken = above | (level & (level.cumsum(dim=1, dtype=torch.int32) <= room))
    # nonzero() walks row by row, so the indices of a row come in ascending order.
    return taken.nonzero()[:, 1].view(-1, k)
