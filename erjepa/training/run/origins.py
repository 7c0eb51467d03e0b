"""The datasets that the examples of a run come from, and metrics of each."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from erjepa.datasets import PairedDataset, origin_labels
from erjepa.replay.retention import ORIGIN_BITS, origins
from erjepa.training.step.passes import PassResult

_labels = lru_cache(origin_labels)  # the same in every step


class Origins:
    """The dataset that each example of a run comes from.

    Attributes:
        names: names of the run's datasets.
        inherited: names of the datasets of earlier runs; the last is origin -1.
    """

    def __init__(self, dataset: PairedDataset) -> None:
        self.names = dataset.names
        self.inherited: list[str] = []
        self._starts = torch.tensor(dataset.starts)

    def ids(self, example_ids: Tensor) -> Tensor:
        """Convert indices in the dataset, int64 [B], to ids in the memory: origin << 32 | index,
        which is the index itself if there is one dataset.
        """
        return self._of(example_ids) << ORIGIN_BITS | example_ids

    def _of(self, example_ids: Tensor) -> Tensor:
        """Return the index of the dataset of each example, int64 [B]."""
        starts = self._starts.to(example_ids.device)
        return torch.bucketize(example_ids, starts, right=True) - 1

    def metrics(
        self, new: PassResult, replayed: PassResult | None
    ) -> dict[str, Tensor | int]:
        """Return the metrics of each dataset, if the run or its memory has several: losses of new
        pairs, and ``replayed_NAME``, the number of replayed pairs.

        Inherited datasets come first in the labels, so that later runs, which inherit these and
        more, give each the same label.
        """
        metrics: dict[str, Tensor | int] = {}
        if len(self.names) > 1:
            parts, names = self._of(new.example_ids), _labels((*self.names,))
            metrics |= losses_by_origin(new.lm, new.labels, new.jepa, parts, names)
        labels = _labels((*self.inherited, *self.names))
        if replayed is not None and len(labels) > 1:
            counts = dict.fromkeys(labels, 0)
            for origin in origins(replayed.example_ids).tolist():
                counts[labels[len(self.inherited) + origin]] += 1
            metrics |= {f"replayed_{label}": count for label, count in counts.items()}
        return metrics


def losses_by_origin(
    lm: Tensor, labels: Tensor, jepa: Tensor, parts: Tensor, names: Sequence[str]
) -> dict[str, Tensor]:
    """Return the losses of each dataset that occurs among B pairs: ``lm_loss_NAME``, nats per
    label, and with views ``jepa_loss_NAME``, the mean distance.

    Args:
        lm: cross-entropy summed over each pair's labels, [B].
        labels: number of labels of each pair, [B].
        jepa: distance of each pair, [B], or [0] without views.
        parts: index of each pair's dataset, int64 [B].
    """
    metrics = {}
    parts = parts.to(lm.device)
    for part in parts.unique().tolist():
        is_part = parts == part
        metrics[f"lm_loss_{names[part]}"] = lm[is_part].sum() / labels[is_part].sum()
        if len(jepa):
            metrics[f"jepa_loss_{names[part]}"] = jepa[is_part].mean()
    return metrics
