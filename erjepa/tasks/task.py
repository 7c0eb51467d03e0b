"""What a task knows about answers: how to read one out of a text, and when it is right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One prediction: "target" and "output" texts, and what the task needs besides ("db_id").
Prediction = Mapping[str, Any]
# Name of a metric to its verdict; None where it is undecided.
Verdicts = dict[str, bool | None]


def _no_problem(target: str) -> str | None:
    return None


@dataclass(frozen=True)
class Task:
    """How the answers of a dataset are scored.

    Args:
        primary: the verdict whose share is the ``accuracy``.
        extract: the answer within a generated text.
        score: verdicts of each prediction, in order; every one has every verdict.
        fields: texts that a prediction must have; its dataset gives those besides target and output.
        problem: why answers cannot be scored by a target; ``None`` where they can.
        with_databases: the same task on a folder of databases; ``None``: it has none.
    """

    name: str
    primary: str
    extract: Callable[[str], str]
    score: Callable[[Sequence[Prediction]], list[Verdicts]]
    fields: tuple[str, ...] = ("target", "output")
    problem: Callable[[str], str | None] = _no_problem
    with_databases: "Callable[[Path], Task] | None" = None


def one_by_one(
    verdicts: Callable[[str, str], Verdicts],
) -> Callable[[Sequence[Prediction]], list[Verdicts]]:
    """What scores predictions by ``verdicts`` of the target and the output of each."""
    return lambda predictions: [verdicts(p["target"], p["output"]) for p in predictions]


def without_end(output: str) -> str:
    """An output as LLM-JEPA's scorers read it: stripped, without an end marker."""
    return output.strip().removesuffix("<|end|>").strip()
