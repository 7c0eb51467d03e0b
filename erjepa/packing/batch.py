"""A micro-batch of packed rows."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class PackedBatch:
    """Packed pairs: R rows of length L, each a prefix tree, see :mod:`erjepa.packing.tree`.

    n pairs have c labels at q distinct positions, and m predictor tokens stand in the rows. Pairs
    that share tokens share positions too. Positions in the rows are flat: ``row * L + column``.
    Without views, what is read of n pairs is read of 0.
    """

    tokens: Tensor  # padded, int64 [R, L]
    input_pos: Tensor  # position ids: depths in the tree, int64 [R, L]
    # One past the column of each token's last descendant; padding ends right behind itself;
    # int32 [R, L].
    end: Tensor
    label_pos: Tensor  # positions whose hidden state predicts labels, int64 [q]
    labels: Tensor  # tokens to predict, int64 [c]
    label_logit: Tensor  # which of the q positions predicts a label, int64 [c]
    label_pair: Tensor  # which of the n pairs a label belongs to, int64 [c]
    source_pos: Tensor  # of z^u, int64 [n]
    # Of p in each of m comparisons, int64 [m, n], [m, 0] with steps.
    predicted_pos: Tensor
    target_pos: Tensor  # of what p is compared with, of the same shape
    # From and to which positions three steps lead, whose sum is p, and three whose sum it is
    # compared with, see erjepa.packing.spans; int64 [n, 2, 3, 2], n = 0 without spans.
    steps: Tensor
    predictor_pos: Tensor  # of the predictor tokens, int64 [m]
    predictor_index: Tensor  # which of the k predictor tokens stands there, int64 [m]
    example_ids: Tensor  # int64 [n]
    order: Tensor  # place of each pair among those that were packed together, int64 [n]
    num_tokens: int  # without padding
    attention_area: int  # (query, key) that the mask admits, without padding

    @property
    def num_pairs(self) -> int:
        """n."""
        return self.example_ids.numel()

    @property
    def num_views(self) -> int:
        """Pairs whose embeddings are read: n, or 0 without views."""
        return self.source_pos.numel()

    @property
    def labels_of_pairs(self) -> Tensor:
        """How many labels each pair has, float32 [n]."""
        counts = torch.zeros(self.num_pairs, device=self.labels.device)
        ones = torch.ones_like(self.labels, dtype=counts.dtype)
        return counts.index_add(0, self.label_pair, ones)

    @property
    def num_labels(self) -> int:
        """c: labels of every pair, shared or not."""
        return self.labels.numel()

    @property
    def num_projected(self) -> int:
        """q: positions at which the output projection runs."""
        return self.label_pos.numel()

    def to(self, device: torch.device) -> "PackedBatch":
        """The batch with its tensors on ``device``."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "PackedBatch":
        """The batch in pinned memory; a data loader with ``pin_memory`` calls it."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "PackedBatch":
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors: dict[str, Any] = {
            name: function(value)
            for name, value in values.items()
            if isinstance(value, Tensor)
        }
        return replace(self, **tensors)
