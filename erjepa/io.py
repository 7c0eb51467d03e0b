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


def read_jsonl(
    path: Path, name: str | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with the place it was read, ``FILE:LINE``.

    Args:
        path (Path): the file. Empty lines count, but hold nothing.
        name (str | None): what the places call it; ``None``: its path.

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
            where = f"{name or path}:{number}"
            require_utf8(line, name or str(path), number)
            try:
                fields = json.loads(line.decode("utf-8-sig").rstrip())
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{where}: not JSON ({error.msg}, column {error.colno})"
                ) from None
            except RecursionError:
                raise ValueError(f"{where}: JSON that is nested too deeply") from None
            if not isinstance(fields, dict):
                raise ValueError(
                    f"{where}: expected a JSON object, got {type(fields).__name__}"
                )
            yield where, fields


def require_utf8(content: bytes, name: str, line: int = 1) -> None:
    """Fail where a text is of another encoding.

    Args:
        content (bytes): the text, or a line of it.
        name (str): of its file.
        line (int): number of its first line.

    Raises:
        ValueError: naming line and column of the first byte that is no UTF-8.
    """
    try:
        content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        line += before.count("\n")
        raise ValueError(
            f"{name}:{line}: not UTF-8 (byte 0x{content[error.start]:02x}, column "
            f"{len(before) - before.rfind(chr(10))}); if it is Latin-1, convert it: "
            "iconv -f LATIN1 -t UTF-8"
        ) from None


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
