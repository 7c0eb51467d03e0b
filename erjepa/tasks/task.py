"""The class of tasks: how to extract the answer from a text, and when it is right."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# One prediction: texts "target" and "output", and further fields of the task such as "db_id".
Prediction = Mapping[str, Any]
# Name of a metric to its verdict; None: undecided.
Verdicts = dict[str, bool | None]


@dataclass(frozen=True)
class Task:
    """Scores the answers to the examples of a dataset."""

    name: str
    primary: str  # metric whose mean over the examples is the ``accuracy``
    extract: Callable[[str], str]  # returns the answer in a generated text
    # Returns the verdicts of each prediction, in order, on the same metrics. Predictions also
    # have the field "extracted"
    score: Callable[[Sequence[Prediction]], list[Verdicts]]
    # Text fields of a prediction; the dataset provides those other than target and output
    fields: tuple[str, ...] = ("target", "output")
    # Returns why answers cannot be scored against a target, or None if they can
    problem: Callable[[str], str | None] = lambda target: None
    # Returns the task for a folder of databases; None: it uses none
    with_databases: "Callable[[Path], Task] | None" = None

    def judge(
        self, predictions: Iterable[Prediction]
    ) -> tuple[list[dict[str, Any]], list[Verdicts]]:
        """Return the predictions with the field ``extracted``, and their verdicts."""
        extracted = [{**p, "extracted": self.extract(p["output"])} for p in predictions]
        verdicts = [
            {k: bool(v) if isinstance(v, np.bool_) else v for k, v in verdict.items()}
            for verdict in self.score(extracted)
        ]
        return extracted, verdicts


def one_by_one(
    verdicts: Callable[[str, str], Verdicts],
) -> Callable[[Sequence[Prediction]], list[Verdicts]]:
    """Return a function for ``Task.score`` that applies ``verdicts`` to each target and output."""
    return lambda predictions: [verdicts(p["target"], p["output"]) for p in predictions]


def without_end(output: str) -> str:
    """Return an output as LLM-JEPA's scorers read it: stripped and without its end marker."""
    return output.strip().removesuffix("<|end|>").strip()
