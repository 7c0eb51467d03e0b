"""Reading and writing of JSON lines."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from erjepa.utils.files import require_utf8


def read_jsonl(
    path: Path, name: str | None = None, *, growing: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSONL file, each after its place, ``NAME:LINE``.

    With ``growing``, an incomplete last line is ignored: it may still be being written.

    Raises:
        ValueError: naming the place, if a line is not a JSON object.
    """
    with path.open("rb") as lines:
        yield from jsonl_of(lines, name or str(path), growing=growing)


def jsonl_of(
    lines: Iterable[bytes], name: str, *, growing: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of an open JSONL file, as :func:`read_jsonl` does."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = parse_json(line, name, number)
        except ValueError:
            if growing and not line.endswith(b"\n"):
                return
            raise
        where = f"{name}:{number}"
        if not isinstance(fields, dict):
            raise ValueError(
                f"{where}: expected a JSON object, got {type(fields).__name__}"
            )
        yield where, fields


def parse_json(content: bytes, name: str, line: int | None = None) -> Any:
    """Parse the JSON of a file, or of its line number ``line``; a ValueError names the place."""
    where, first = (name, 1) if line is None else (f"{name}:{line}", line)
    require_utf8(content, name, first)
    try:
        return json.loads(content.decode("utf-8-sig").rstrip())
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{name}:{first + error.lineno - 1}: not JSON ({error.msg}, "
            f"column {error.colno})"
        ) from None
    except (RecursionError, ValueError) as error:  # too deep, or a number too long
        raise ValueError(f"{where}: JSON that cannot be read ({error})") from None


def to_jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return one line of JSON per row, with texts as they are, so that they can be searched."""
    return "".join(_to_json(row) + "\n" for row in rows)


def _to_json(row: Mapping[str, Any]) -> str:
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(row)
    return text
