"""The sections of a report, by name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from erjepa.report import (
    ablations,
    accuracy,
    alignment,
    compute,
    errors,
    figure_1,
    subsets,
    trajectories,
    tuning,
)
from erjepa.report.examples import examples
from erjepa.report.figures import Figure
from erjepa.report.paired import significance
from erjepa.report.table import Table

Part = Table | Figure


@dataclass(frozen=True)
class Section:
    """A section.

    Args:
        title (str): its heading.
        build (Callable[..., Iterable[Part]]): makes its parts from the results, a dataset
            unless ``whole``, and the arguments of the config; raises ``Unavailable`` where the
            results do not allow it.
        task (str | None): the only task that it can be made for.
        whole (bool): whether it is about all datasets together.
        by_default (bool): whether a report has it when its config names no sections.
    """

    title: str
    build: Callable[..., Iterable[Part]]
    task: str | None = None
    whole: bool = False
    by_default: bool = True


SECTIONS = {
    "figure_1": Section(
        "Accuracy by dataset and by compute", figure_1.figure_1, whole=True
    ),
    "chosen": Section("Chosen settings", tuning.chosen, by_default=False),
    "main": Section("Accuracy", accuracy.main, whole=True),
    "significance": Section("Paired tests", significance, whole=True),
    "readings": Section("Readings of the answers", accuracy.readings),
    "matched_compute": Section("Matched compute", compute.matched_compute),
    "single_seeds": Section("Single seeds", compute.single_seeds),
    "learning_curves": Section("Learning curves", compute.learning_curves),
    "token_matched": Section("Matched tokens", accuracy.token_matched),
    "current_batch": Section("Stored pairs or current batch", accuracy.current_batch),
    "dynamics": Section("Prediction dynamics", trajectories.dynamics),
    "drops": Section("Drops of accuracy", trajectories.accuracy_drops),
    "alignment": Section("Alignment and correctness", alignment.alignment),
    "corrections": Section("Corrected errors", errors.corrected_errors, task="nl_rx"),
    "stops": Section("Where answers end", errors.stops, task="nl_rx"),
    "outcomes": Section("Outcomes of errors", errors.outcomes, task="nl_rx"),
    "structures": Section("Structure of the target", subsets.structures, task="nl_rx"),
    "lengths": Section("Length of the target", subsets.lengths, task="nl_rx"),
    "addressing": Section("Sparse and dense addresses", ablations.addressing),
    "capacity": Section("Capacity of the memory", ablations.capacity),
    "lambda_k": Section("JEPA weight and predictor tokens", ablations.lambda_k),
    "cost": Section("Cost of training", compute.cost),
    "examples": Section("Examples", examples),
    "bars": Section("Accuracy of some methods", accuracy.bars, by_default=False),
}
