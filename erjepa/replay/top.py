"""An exact top-k: `torch.topk` leaves the order of equal values open, replay may not."""

import torch
from torch import Tensor


def top_slots(values: Tensor, k: int) -> Tensor:
    """The k largest values of every row, descending, ties to the lower index.

    Linear in the row's length. The result is a function of the values alone, so every
    rank that holds the same values selects the same slots.

    Args:
        values (Tensor): comparable values without NaN, shape [B, N].
        k (int): how many to take per row, 0 <= k <= N.

    Returns:
        Tensor: int64 indices into the rows, shape [B, k].
    """
    if k == 0:
        return torch.empty(values.shape[0], 0, dtype=torch.int64, device=values.device)
    threshold = values.topk(k, dim=1).values[:, -1:]
    above = values > threshold
    level = values == threshold
    room = k - above.sum(dim=1, keepdim=True)
    taken = above | (level & (level.cumsum(dim=1, dtype=torch.int32) <= room))
    # nonzero() walks row by row, so the indices of a row come in ascending order and
    # the stable sort keeps equal values in that order.
    indices = taken.nonzero()[:, 1].view(-1, k)
    order = values.gather(1, indices).sort(dim=1, descending=True, stable=True).indices
    return indices.gather(1, order)
