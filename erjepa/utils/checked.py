"""Values read from a file, checked against a type by pydantic."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
_MAX_SHOWN = 80  # characters of a wrong value
_adapter: Callable[[Any], TypeAdapter] = cache(TypeAdapter)


def checked(kind: type[T], value: Any, where: str) -> T:
    """A value of JSON or YAML as a typed one; the text ``"5"`` is not a number.

    Halves of surrogate pairs, which UTF-8 does not have, become ``?``.

    Args:
        kind: a dataclass, or any other type that pydantic checks. Unknown fields of a
            dataclass are ignored.
        value: numbers, texts, lists and mappings, as ``json.loads`` returns them.
        where: the place it was read, such as ``results.jsonl:3``, or ``""``.

    Raises:
        ValueError: in one line, naming the place, the field, the value and what is expected.
    """
    try:
        # As JSON, since only there does strict validation make dataclasses of mappings.
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        field = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}"
            for part in first["loc"]
        ).lstrip(".")
        message = first["msg"][0].lower() + first["msg"][1:]
        if first["type"] == "value_error":  # of a check of ours, which says all
            message = str(first["ctx"]["error"])
        elif first["type"] != "missing":
            shown = json.dumps(first["input"])
            cut = f"{shown[:_MAX_SHOWN]}..." if len(shown) > _MAX_SHOWN else shown
            message += f", got {cut}"
        parts = filter(None, (where, field, message))
        more = f" (and {len(others)} more errors)" if others else ""
        raise ValueError(": ".join(parts) + more) from None
