"""What a step logs of each dataset that its pairs are from."""

from collections.abc import Sequence

from torch import Tensor

from erjepa.replay.retention import origins
from erjepa.training.step.passes import PassResult


def losses_by_origin(
    new: PassResult, parts: Tensor, labels: Sequence[str]
) -> dict[str, Tensor]:
    """``lm_loss_NAME``, nats a label, and with views ``jepa_loss_NAME``, the mean distance, of each
    dataset that some of a step's B new pairs are from.

    Args:
        parts: place of each pair's dataset among those of the run, int64 [B].
        labels: names of the datasets.
    """
    metrics = {}
    parts = parts.to(new.lm.device)
    for part in parts.unique().tolist():
        own = parts == part
        metrics[f"lm_loss_{labels[part]}"] = new.lm[own].sum() / new.labels[own].sum()
        if len(new.jepa):
            metrics[f"jepa_loss_{labels[part]}"] = new.jepa[own].mean()
    return metrics


def replayed_by_origin(
    example_ids: Tensor, own: Sequence[str], inherited: Sequence[str]
) -> dict[str, int]:
    """``replayed_NAME``: how many of a step's replayed pairs are from each dataset.

    Args:
        example_ids: their ids in the memory, int64 [R].
        own: names of the run's datasets.
        inherited: names of those of earlier runs; the last is origin -1.
    """
    labels = [*own, *inherited]
    counts = dict.fromkeys((f"replayed_{label}" for label in labels), 0)
    for origin in origins(example_ids).tolist():
        # Inherited origins count from the end, as they stand in the list.
        counts[f"replayed_{labels[origin]}"] += 1
    return counts
