"""JSON lines."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from erjepa.utils.files import require_utf8


def read_jsonl(
    path: Path, name: str | None = None, *, growing: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with the place it was read, ``FILE:LINE``.

    Args:
        path (Path): the file. Empty lines count, but hold nothing.
        name (str | None): what the places call it; ``None``: its path.
        growing (bool): whether a last line that is cut off is left out.

    Yields:
        tuple[str, dict[str, Any]]: place and object, in order.

    Raises:
        ValueError: naming the place, if a line is not a JSON object.
    """
    with path.open("rb") as lines:
        yield from jsonl_of(lines, name or str(path), growing=growing)


def jsonl_of(
    lines: Iterable[bytes], name: str, *, growing: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of an open JSONL file, as :func:`read_jsonl` yields them.

    Args:
        lines: of bytes, so that the number of a line that is not UTF-8 is known.
        name: what the places call the file.
        growing: whether a last line that is cut off is left out.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        if growing and not line.endswith(b"\n") and not _is_json(line):
            return
        require_utf8(line, name, number)
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


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def to_jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    """A line of JSON for each row."""
    return "".join(json.dumps(row) + "\n" for row in rows)
