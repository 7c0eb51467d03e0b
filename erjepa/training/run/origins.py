"""The datasets that the examples of a run come from, and metrics of each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from erjepa.configs import Component, Components, components
from erjepa.datasets import ConcatenatedPairs, Pairs, origin_labels
from erjepa.replay.retention import ORIGIN_BITS, origins
from erjepa.training.step.passes import PassResult


class Origins:
    """The dataset that each example of a run comes from.

    Attributes:
        names: names of the run's datasets.
        inherited: names of the datasets of earlier runs; the last is origin -1.
    """

    def __init__(self, dataset: Pairs, section: Components) -> None:
        self.names = [name_of(components(section)[0])]
        self.inherited: list[str] = []
        self._parts: Tensor | None = None
        if isinstance(dataset, ConcatenatedPairs):
            self.names = dataset.names
            parts = [dataset.origin(i) for i in range(len(dataset))]
            self._parts = torch.tensor(parts)

    def ids(self, example_ids: Tensor) -> Tensor:
        """Convert indices in the dataset, int64 [B], to ids in the memory: origin << 32 | index,
        which is the index itself if there is one dataset.
        """
        if self._parts is None:
            return example_ids
        parts = self._parts.to(example_ids.device)[example_ids]
        return parts << ORIGIN_BITS | example_ids

    def metrics(
        self, new: PassResult, replayed: PassResult | None
    ) -> dict[str, Tensor | int]:
        """Return the metrics of each dataset, if the run or its memory has several: losses of new
        pairs, and ``replayed_NAME``, the number of replayed pairs.
        """
        labels = origin_labels([*self.names, *self.inherited])
        metrics: dict[str, Tensor | int] = {}
        if self._parts is not None:
            parts = self._parts[new.example_ids.cpu()]
            metrics |= losses_by_origin(new.lm, new.labels, new.jepa, parts, labels)
        if replayed is not None and len(labels) > 1:
            counts = dict.fromkeys(labels, 0)
            for origin in origins(replayed.example_ids).tolist():
                # Negative origins index inherited datasets from the end of the list.
                counts[labels[origin]] += 1
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
        names: names of the datasets.
    """
    metrics = {}
    parts = parts.to(lm.device)
    for part in parts.unique().tolist():
        is_part = parts == part
        metrics[f"lm_loss_{names[part]}"] = lm[is_part].sum() / labels[is_part].sum()
        if len(jepa):
            metrics[f"jepa_loss_{names[part]}"] = jepa[is_part].mean()
    return metrics


def name_of(dataset: Component) -> str:
    """Return the name of a dataset: its file, or its builder with its plain arguments."""
    if source := dataset.get("source"):
        return str(source)
    values = [
        f"{key}={'+'.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in dataset.arguments.items()
        if isinstance(value, (str, int, list))
    ]
    return f"{dataset.name}({', '.join(values)})"
