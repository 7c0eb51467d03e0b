"""The datasets that the examples of a run are from, and what a step logs of each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from erjepa.configs import Component, Components, components
from erjepa.datasets import ConcatenatedPairs, Pairs, origin_labels
from erjepa.replay.retention import ORIGIN_BITS, origins
from erjepa.training.step.passes import PassResult


class Origins:
    """Which dataset each example of a run is from.

    Attributes:
        names: of the run's datasets.
        inherited: names of those of earlier runs; the last is origin -1.
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
        """The ids under which the memory holds examples, given by their places in the dataset,
        int64 [B]: origin << 32 | place, so the places themselves where there is one dataset.
        """
        if self._parts is None:
            return example_ids
        parts = self._parts.to(example_ids.device)[example_ids]
        return parts << ORIGIN_BITS | example_ids

    def metrics(
        self, new: PassResult, replayed: PassResult | None
    ) -> dict[str, Tensor | int]:
        """What a step logs of each dataset, where the run or its memory has several: losses of new
        pairs, and ``replayed_NAME``, how many pairs were replayed.
        """
        labels = origin_labels([*self.names, *self.inherited])
        metrics: dict[str, Tensor | int] = {}
        if self._parts is not None:
            parts = self._parts[new.example_ids.cpu()]
            metrics |= losses_by_origin(new.lm, new.labels, new.jepa, parts, labels)
        if replayed is not None and len(labels) > 1:
            counts = dict.fromkeys(labels, 0)
            for origin in origins(replayed.example_ids).tolist():
                # Inherited origins count from the end, as they stand in the list.
                counts[labels[origin]] += 1
            metrics |= {f"replayed_{label}": count for label, count in counts.items()}
        return metrics


def losses_by_origin(
    lm: Tensor, labels: Tensor, jepa: Tensor, parts: Tensor, names: Sequence[str]
) -> dict[str, Tensor]:
    """``lm_loss_NAME``, nats a label, and with views ``jepa_loss_NAME``, the mean distance, of each
    dataset that some of B pairs are from.

    Args:
        lm: cross-entropy summed over each pair's labels, [B].
        labels: how many labels each pair has, [B].
        jepa: distance of each pair, [B], or [0] without views.
        parts: place of each pair's dataset among those of the run, int64 [B].
        names: of the datasets.
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
    """The name of a dataset: its file, or its builder with the arguments that distinguish it."""
    if source := dataset.get("source"):
        return str(source)
    values = [
        f"{key}={'+'.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in dataset.arguments.items()
        if isinstance(value, (str, int, list))
    ]
    return f"{dataset.name}({', '.join(values)})"
