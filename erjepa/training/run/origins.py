"""The datasets that the examples of a run come from, and metrics of each."""

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
        metrics: dict[str, Tensor | int] = {**self.losses(new)}
        labels = _labels((*self.inherited, *self.names))
        if replayed is not None and len(labels) > 1:
            counts = dict.fromkeys(labels, 0)
            for origin in origins(replayed.example_ids).tolist():
                counts[labels[len(self.inherited) + origin]] += 1
            metrics |= {f"replayed_{label}": count for label, count in counts.items()}
        return metrics

    def losses(self, result: PassResult) -> dict[str, Tensor]:
        """Return the losses of each of the run's datasets that occurs in a pass, if the run has
        several: ``lm_loss_NAME``, nats per label, and with views ``jepa_loss_NAME``, the mean
        distance.
        """
        if len(self.names) == 1:
            return {}
        metrics, names = {}, _labels((*self.names,))
        parts = self._of(result.example_ids)
        for part in parts.unique().tolist():
            own, name = parts == part, names[part]
            metrics[f"lm_loss_{name}"] = result.lm[own].sum() / result.labels[own].sum()
            if len(result.jepa):
                metrics[f"jepa_loss_{name}"] = result.jepa[own].mean()
        return metrics
