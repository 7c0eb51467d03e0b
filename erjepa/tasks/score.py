"""Scores of texts generated anywhere: ``python -m erjepa.tasks.score TASK FILE.jsonl``.

FILE has one JSON object a line with ``target`` and ``output``, for Spider also ``db_id``.
Prints the summary; with ``--output`` also writes the predictions with their verdicts.
"""

import argparse
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from erjepa.tasks.summary import summarize
from erjepa.tasks.task import Prediction, Task

# Name of a task to the fields that its predictions need.
FIELDS = {
    "nl_rx": ("target", "output"),
    "gsm8k": ("target", "output"),
    "nq_open": ("target", "output"),
    "spider": ("target", "output", "db_id"),
}


def load_task(name: str, databases: str | Path | None = None) -> Task:
    """A task by name.

    Args:
        name (str): ``nl_rx``, ``gsm8k``, ``nq_open`` or ``spider``.
        databases (str | Path | None): folder of Spider's databases.

    Returns:
        Task: the task.

    Raises:
        ValueError: if there is no such task, or it has no databases.
    """
    if name not in FIELDS:
        raise ValueError(f"task={name}: expected one of {', '.join(FIELDS)}")
    if name == "spider":
        from erjepa.tasks.spider import spider_task

        return spider_task(None if databases is None else Path(databases))
    if databases is not None:
        raise ValueError(f"databases={databases}: {name} has none, only spider has")
    return import_module(f"erjepa.tasks.{name}").TASK


def require_fields(task: Task, dataset: Any, component: str) -> None:
    """Find out before generating whether answers can be scored.

    Args:
        task (Task): what they are scored by.
        dataset (Any): dataset of the prompts, with ``scoring_fields``.
        component (str): its builder, for the message.

    Raises:
        ValueError: if the dataset does not give what the task needs.
    """
    known = {"target", "output", *dataset.scoring_fields(0)}
    if missing := sorted(set(FIELDS[task.name]) - known):
        raise ValueError(
            f"task={task.name} scores by {', '.join(missing)}, which {component} does "
            "not give"
        )


def score_predictions(
    task: Task, predictions: Sequence[Prediction]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Score predictions and add them up.

    Args:
        task (Task): what they are scored by.
        predictions (Sequence[Prediction]): with the fields that the task needs.

    Returns:
        tuple[list[dict[str, Any]], dict[str, Any]]: the predictions with ``extracted`` and
        their verdicts; and the summary, with ``task`` and ``accuracy``.
    """
    verdicts = task.score(predictions)
    summary = {"task": task.name, **summarize(predictions, verdicts, task.primary)}
    scored = [
        {**prediction, "extracted": task.extract(prediction["output"]), **verdict}
        for prediction, verdict in zip(predictions, verdicts, strict=True)
    ]
    return scored, summary


def read_predictions(path: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Read predictions from a JSONL file.

    Args:
        path (Path): the file.
        fields (Sequence[str]): fields that every line must have, as texts.

    Returns:
        list[dict[str, Any]]: the predictions in order.

    Raises:
        ValueError: naming file and line, if a line is not a JSON object or lacks a field,
            or naming the file if it is empty.
    """
    predictions = []
    # As bytes, so that a line that is no UTF-8 is found out where its number is known.
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                predictions.append(_parse(line, f"{path}:{number}", fields))
    if not predictions:
        raise ValueError(f"{path}: no predictions; expected one JSON object a line")
    return predictions


def _parse(line: bytes, where: str, fields: Sequence[str]) -> dict[str, Any]:
    try:
        prediction = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    if not isinstance(prediction, dict):
        raise ValueError(
            f"{where}: expected a JSON object, got {type(prediction).__name__}"
        )
    for field in fields:
        if field not in prediction:
            raise ValueError(
                f"{where}: no field {field!r}; the line has {sorted(prediction)}"
            )
        if not isinstance(prediction[field], str):
            raise ValueError(
                f"{where}: {field} must be a text, got "
                f"{type(prediction[field]).__name__}"
            )
    return prediction


def main(arguments: Sequence[str] | None = None) -> None:
    """Score a file.

    Args:
        arguments (Sequence[str] | None): command line; ``None`` for that of the process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m erjepa.tasks.score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", metavar="TASK", help=", ".join(FIELDS))
    parser.add_argument("file", metavar="FILE.jsonl", type=Path)
    parser.add_argument(
        "--databases", metavar="DIR", type=Path, help="Spider's databases"
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, help="for predictions.jsonl, summary.json"
    )
    args = parser.parse_args(arguments)
    try:
        task = load_task(args.task, args.databases)
        predictions = read_predictions(args.file, FIELDS[args.task])
        scored, summary = score_predictions(task, predictions)
        text = json.dumps(summary, indent=2) + "\n"
        if args.output is not None:
            args.output.mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(prediction) + "\n" for prediction in scored)
            (args.output / "predictions.jsonl").write_text(lines)
            (args.output / "summary.json").write_text(text)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(text, end="")


if __name__ == "__main__":
    main()
