"""A micro-batch of packed rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class PackedBatch:
    """Packed pairs: R rows of length L, each a prefix tree, see :mod:`erjepa.packing.tree`.

    The n pairs have c labels at q distinct positions; the rows contain t predictor tokens. Pairs
    that share tokens share positions too. Positions are flat indices ``row * L + column``. Without
    views no embeddings are read, and n is 0 in the shapes of their positions.
    """

    tokens: Tensor  # padded, int64 [R, L]
    input_pos: Tensor  # position ids: depths in the tree, int64 [R, L]
    # One past the column of each token's last descendant (for padding, of itself), int32 [R, L].
    end: Tensor
    label_pos: Tensor  # positions whose hidden state predicts labels, int64 [q]
    labels: Tensor  # tokens to predict, int64 [c]
    label_logit: Tensor  # index into label_pos of each label, int64 [c]
    label_pair: Tensor  # index of the pair of each label, int64 [c]
    source_pos: Tensor  # positions of z^u, int64 [n]
    # Positions of p in each of m comparisons, int64 [m, n]; [m, 0] with steps.
    predicted_pos: Tensor
    target_pos: Tensor  # positions of what p is compared with, same shape
    # Start and end positions of the three steps whose sum is p, and of the three whose sum p is
    # compared with, see erjepa.packing.spans; int64 [n, 2, 3, 2], n = 0 for other views.
    steps: Tensor
    predictor_pos: Tensor  # positions of the predictor tokens, int64 [t]
    predictor_index: Tensor  # which of the k predictor tokens each is, int64 [t]
    example_ids: Tensor  # int64 [n]
    order: Tensor  # index of each pair in the list that was packed, int64 [n]
    num_tokens: int  # without padding
    attention_area: int  # number of (query, key) that the mask admits, without padding

    @property
    def num_pairs(self) -> int:
        """Number of pairs n."""
        return self.example_ids.numel()

    @property
    def num_views(self) -> int:
        """Number of pairs whose embeddings are read: n, or 0 without views."""
        return self.source_pos.numel()

    @property
    def labels_of_pairs(self) -> Tensor:
        """Number of labels of each pair, float32 [n]."""
        counts = torch.zeros(self.num_pairs, device=self.labels.device)
        ones = torch.ones_like(self.labels, dtype=counts.dtype)
        return counts.index_add(0, self.label_pair, ones)

    @property
    def num_labels(self) -> int:
        """Number of labels c; one that pairs share counts once for each."""
        return self.labels.numel()

    @property
    def num_projected(self) -> int:
        """Number of positions q at which the output projection runs."""
        return self.label_pos.numel()

    def to(self, device: torch.device) -> "PackedBatch":
        """Return the batch with its tensors on ``device``."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "PackedBatch":
        """Return the batch in pinned memory; data loaders with ``pin_memory`` call this."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "PackedBatch":
        tensors: dict[str, Any] = {
            name: function(value)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **tensors)
