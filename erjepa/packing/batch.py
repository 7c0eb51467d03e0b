"""A micro-batch of packed rows."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

PADDING = -1  # document of padding tokens


@dataclass
class PackedBatch:
    """Packed pairs. R rows of length L, n pairs, c label positions, k predictor tokens.

    Positions in the rows are flat: ``row * L + column``.

    Args:
        tokens (Tensor): token ids, padded, int64 [R, L].
        input_pos (Tensor): position ids, int64 [R, L].
        document (Tensor): document of each token, ``PADDING`` where none, int32 [R, L].
        branch (Tensor): branch of each token, 0 is the trunk, int32 [R, L].
        label_pos (Tensor): positions whose hidden state predicts a label, int64 [c].
        labels (Tensor): the token to predict there, int64 [c].
        label_pair (Tensor): which of the n pairs a label belongs to, int64 [c].
        source_pos (Tensor): positions of :math:`z^u`, int64 [n], or [0] without views.
        predicted_pos (Tensor): positions of :math:`p`, int64 [n] or [0].
        target_pos (Tensor): positions of :math:`z^a`, int64 [n] or [0].
        predictor_pos (Tensor): positions of the predictor tokens, int64 [n, k].
        example_ids (Tensor): int64 [n].
        order (Tensor): place of each pair among those that were packed together, int64 [n].
        num_tokens (int): tokens that are not padding.
        attention_area (int): pairs of (query, key) that the mask admits.
    """

    tokens: Tensor
    input_pos: Tensor
    document: Tensor
    branch: Tensor
    label_pos: Tensor
    labels: Tensor
    label_pair: Tensor
    source_pos: Tensor
    predicted_pos: Tensor
    target_pos: Tensor
    predictor_pos: Tensor
    example_ids: Tensor
    order: Tensor
    num_tokens: int
    attention_area: int

    @property
    def num_pairs(self) -> int:
        """Number of pairs, n."""
        return self.example_ids.numel()

    @property
    def num_labels(self) -> int:
        """Number of label positions, c."""
        return self.labels.numel()

    def to(self, device: torch.device) -> "PackedBatch":
        """The batch with its tensors on ``device``."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "PackedBatch":
        """The batch in pinned memory; a data loader with ``pin_memory`` calls it."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "PackedBatch":
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return PackedBatch(
            **{
                name: function(value) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
        )
