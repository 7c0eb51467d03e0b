"""Loads tasks, and reads, scores and writes predictions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from erjepa.tasks import task_names
from erjepa.tasks.batch_output import is_batch_output, read_batch_output
from erjepa.tasks.summary import by_origin, summarize
from erjepa.tasks.task import Prediction, Task
from erjepa.utils.files import PREDICTIONS, SUMMARY, write_whole
from erjepa.utils.jsonl import read_jsonl, to_jsonl
from erjepa.utils.summary import Summary

# Fields of a prediction, besides those of a task.
_PREDICTION = (
    *("id", "prompt", "target", "output", "tokens", "finished", "origin"),
    *("extracted", "unanswered", "target_tokens"),
)


def load_task(
    name: str, databases: str | Path | None = None, primary: str | None = None
) -> Task:
    """Load a task by name or dotted path.

    Args:
        databases: folder of databases, for a task that uses them.
        primary: metric that is the accuracy; ``None``: the task's default.

    Raises:
        ValueError: if there is no such task, or ``databases`` is set and it uses none.
    """
    task = _find(name)
    if not isinstance(task, Task):
        raise ValueError(
            f"task={name} is a {type(task).__name__}; expected an erjepa.tasks.Task"
        )
    if databases is not None:
        if task.with_databases is None:
            raise ValueError(
                f"databases={databases}: {name} has none; leave the key out"
            )
        task = task.with_databases(Path(databases))
    return task if primary is None else replace(task, primary=primary)


def _find(name: str) -> Any:
    if name in task_names():
        return import_module(f"erjepa.tasks.{name}.scorer").TASK
    module, _, attribute = str(name).rpartition(".")
    if not (module and attribute):
        raise ValueError(
            f"task={name}: expected one of {', '.join(task_names())}, or the dotted path "
            "of a task"
        )
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"task={name} cannot be imported ({error}); check the path and that its "
            "module is on PYTHONPATH"
        ) from error


def score_predictions(
    task: Task, predictions: Sequence[Prediction]
) -> tuple[list[dict[str, Any]], Summary]:
    """Return the predictions with ``extracted`` and their verdicts, and the summary of these."""
    extracted, verdicts = task.judge(predictions)
    readings = summarize(predictions, verdicts, task.primary)
    if taken := sorted(readings.keys() & {*Summary.model_fields, *_PREDICTION}):
        raise ValueError(
            f"task {task.name}: its metric cannot be called {taken[0]}, which is a field of "
            "summary.json or predictions.jsonl; rename it"
        )
    unanswered = sum("unanswered" in prediction for prediction in predictions)
    summary = Summary.model_validate(
        {
            "task": task.name,
            "accuracy": readings[task.primary].share,
            "primary": task.primary,
            "by_origin": by_origin(predictions, verdicts, task.primary) or None,
            "unanswered": unanswered or None,
            **readings,
        }
    )
    scored = [
        {**prediction, **verdict}
        for prediction, verdict in zip(extracted, verdicts, strict=True)
    ]
    return scored, summary


def read_predictions(
    path: Path, task: Task, targets: Path | None = None
) -> list[dict[str, Any]]:
    """Read predictions from a JSONL file, or the output of a batch together with its ``targets``.

    Raises:
        ValueError: naming file and line, if the task cannot score a line, or if the file is empty.
    """
    if targets is not None:
        lines: Iterable[tuple[str, Any]] = read_batch_output(path, targets)
    elif is_batch_output(path):
        raise ValueError(
            f"{path} is the output of a batch and has no targets; add --targets "
            "PROMPTS.targets.jsonl, which erjepa prompts wrote"
        )
    else:
        lines = read_jsonl(path)
    predictions = []
    for where, prediction in lines:
        for field in task.fields:
            if field not in prediction:
                raise ValueError(
                    f"{where}: no field {field!r}; the line has {sorted(prediction)}"
                )
            if not isinstance(prediction[field], str):
                kind = type(prediction[field]).__name__
                raise ValueError(f"{where}: {field} must be a text, got {kind}")
        if problem := task.problem(prediction["target"]):
            raise ValueError(f"{where}: {problem}")
        predictions.append(prediction)
    if not predictions:
        raise ValueError(f"{path}: no predictions; expected one JSON object a line")
    return predictions


def write_scores(
    folder: Path, predictions: Iterable[Mapping[str, Any]], summary: Summary
) -> None:
    """Write ``predictions.jsonl``, then ``summary.json``."""
    write_whole(folder / PREDICTIONS, to_jsonl(predictions))
    write_whole(folder / SUMMARY, summary.to_json() + "\n")
