"""Files that one part writes and another reads: their names, JSON lines, whole or absent."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Of an evaluation.
PREDICTIONS = "predictions.jsonl"
SUMMARY = "summary.json"
# Of an experiment.
EXPERIMENT = "experiment.json"
RESULTS = "results.jsonl"


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with the place it was read, ``FILE:LINE``.

    Args:
        path (Path): the file. Empty lines count, but hold nothing.

    Yields:
        tuple[str, dict[str, Any]]: place and object, in order.

    Raises:
        ValueError: naming the place, if a line is not a JSON object.
    """
    # As bytes, so that a line that is no UTF-8 is found out where its number is known.
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                fields = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{where}: not JSON ({error})") from None
            if not isinstance(fields, dict):
                raise ValueError(
                    f"{where}: expected a JSON object, got {type(fields).__name__}"
                )
            yield where, fields


def to_jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    """A line of JSON for each row."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_whole(path: Path, text: str) -> None:
    """Write a file aside, then put it in place: a killed process leaves the file before.

    Args:
        path (Path): the file, replaced if there is one.
        text (str): what it is to hold.
    """
    aside = path.with_name(f".{path.name}")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
