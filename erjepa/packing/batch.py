"""A micro-batch of packed rows."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class PackedBatch:
    """Packed pairs: R rows of length L, each a prefix tree, see :mod:`erjepa.packing.tree`.

    n pairs have c labels at q distinct positions, and m predictor tokens stand in the rows.
    Pairs that share tokens share positions too. Positions in the rows are flat:
    ``row * L + column``.

    Args:
        tokens: token ids, padded, int64 [R, L].
        input_pos: position ids, which are depths in the tree, int64 [R, L].
        end: one past the column of each token's last descendant; padding ends right
            behind itself; int32 [R, L].
        label_pos: positions whose hidden state predicts labels, int64 [q].
        labels: tokens to predict, int64 [c].
        label_logit: which of the q positions predicts a label, int64 [c].
        label_pair: which of the n pairs a label belongs to, int64 [c].
        source_pos: positions of :math:`z^u`, int64 [n], or [0] without views.
        predicted_pos: positions of :math:`p` in each of m comparisons, int64 [m, n],
            or [m, 0] without views or where they are sums of steps.
        target_pos: positions of what it is compared with, of the same shape.
        steps: from and to which positions three steps lead, whose sum is :math:`p`,
            and three whose sum it is compared with, see :mod:`erjepa.packing.spans`; int64
            [n, 2, 3, 2], or [0, 2, 3, 2] where these are hidden states.
        predictor_pos: positions of the predictor tokens, int64 [m].
        predictor_index: which of the k predictor tokens stands there, int64 [m].
        example_ids: int64 [n].
        order: place of each pair among those that were packed together, int64 [n].
        num_tokens: tokens that are not padding.
        attention_area: (query, key) that the mask admits, padding left out.
    """

    tokens: Tensor
    input_pos: Tensor
    end: Tensor
    label_pos: Tensor
    labels: Tensor
    label_logit: Tensor
    label_pair: Tensor
    source_pos: Tensor
    predicted_pos: Tensor
    target_pos: Tensor
    steps: Tensor
    predictor_pos: Tensor
    predictor_index: Tensor
    example_ids: Tensor
    order: Tensor
    num_tokens: int
    attention_area: int

    @property
    def num_pairs(self) -> int:
        """Number of pairs, n."""
        return self.example_ids.numel()

    @property
    def num_views(self) -> int:
        """Number of pairs whose embeddings are read: n, or 0 without views."""
        return self.source_pos.numel()

    @property
    def labels_of_pairs(self) -> Tensor:
        """How many labels each pair has, float32 [n]."""
        counts = torch.zeros(self.num_pairs, device=self.labels.device)
        ones = torch.ones_like(self.labels, dtype=counts.dtype)
        return counts.index_add(0, self.label_pair, ones)

    @property
    def num_labels(self) -> int:
        """Number of labels, c: those of every pair, shared or not."""
        return self.labels.numel()

    @property
    def num_projected(self) -> int:
        """Number of positions at which the output projection runs, q."""
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
