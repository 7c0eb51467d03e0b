"""Held-out losses of each dataset of a list."""

import torch
from torch import Tensor

from erjepa.datasets import ConcatenatedPairs, Pairs
from erjepa.objective.loss import PairLosses
from erjepa.packing import PackedBatch
from erjepa.training.model.distributed import all_reduce_sum


class OriginLosses:
    """Adds up the losses of pairs by the dataset they are from; nothing where there is one."""

    def __init__(self, dataset: Pairs, device: torch.device) -> None:
        self._dataset = dataset if isinstance(dataset, ConcatenatedPairs) else None
        self._sums: dict[str, Tensor] = {}
        if self._dataset is not None:
            # Cross-entropy, labels, distance, pairs with a distance.
            empty = torch.zeros(4, dtype=torch.float64, device=device)
            self._sums = {label: empty.clone() for label in self._dataset.labels}

    def add(self, batch: PackedBatch, losses: PairLosses) -> None:
        """Take in the pairs of a batch of this rank."""
        if self._dataset is None:
            return
        rows = [losses.lm, batch.labels_of_pairs]
        if len(losses.jepa):
            rows += [losses.jepa, torch.ones_like(losses.jepa)]
        for example, row in zip(
            batch.example_ids.tolist(), torch.stack(rows, dim=1), strict=True
        ):
            label = self._dataset.labels[self._dataset.origin(example)]
            self._sums[label][: len(row)] += row

    def metrics(self) -> dict[str, float]:
        """``val_lm_loss_NAME``, nats a label, and with views ``val_jepa_loss_NAME``, the mean
        distance, of each dataset that has held-out pairs; the same on every rank.
        """
        metrics = {}
        for label, sums in self._sums.items():
            lm, num_labels, jepa, num_pairs = all_reduce_sum(sums).tolist()
            if num_labels:
                metrics[f"val_lm_loss_{label}"] = lm / num_labels
            if num_pairs:
                metrics[f"val_jepa_loss_{label}"] = jepa / num_pairs
        return metrics
