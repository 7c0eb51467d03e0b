"""Values read from a file, checked against a type by pydantic."""

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from erjepa.utils.jsonl import parse_json

T = TypeVar("T")
_MAX_SHOWN = 80  # characters of a wrong value
_LIKE = 0.65  # minimum similarity, of 1, of a key that a hint suggests
_MAX_LISTED = 20  # known keys that a message lists
_EXPECTED = "input should be "
_adapter: Callable[[Any], TypeAdapter] = cache(TypeAdapter)


def checked(kind: type[T], value: Any, where: str, context: Any = None) -> T:
    """Convert a value of JSON or YAML to a type, strictly: the string ``"5"`` is not a number.

    Lone surrogates, which UTF-8 cannot encode, become ``?``.

    Args:
        kind: any type that pydantic can validate; unknown fields of a dataclass are ignored.
        where: place of the value for messages, such as ``results.jsonl:3``, or ``""``.
        context: what pydantic passes to the validators of the type.

    Raises:
        ValueError: if the value does not match, with place, field, value and what was expected.
    """
    try:
        # Strict validation converts mappings to dataclasses only when it reads JSON.
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()
        return _adapter(kind).validate_json(text, strict=True, context=context)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        field = _field(value, first)
        message = first["msg"][0].lower() + first["msg"][1:]
        if first["type"] == "value_error":  # from our own validator: complete as it is
            message = str(first["ctx"]["error"])
            field = "" if message.startswith(field) else field
        elif first["type"] != "missing":
            # A union has one error for each of its types.
            same = [e for e in others if _field(value, e) == field]
            others = [e for e in others if e not in same]
            for other in same:
                message += " or " + other["msg"][len(_EXPECTED) :]
            shown = json.dumps(first["input"])
            cut = f"{shown[:_MAX_SHOWN]}..." if len(shown) > _MAX_SHOWN else shown
            message += f", got {cut}"
        parts = filter(None, (where, field, message))
        more = f" (and {len(others)} more errors)" if others else ""
        raise ValueError(": ".join(parts) + more) from None


def read_json(kind: type[T], path: Path) -> T:
    """Read a JSON file as a value of a type; errors as of :func:`checked`, naming the file."""
    return checked(kind, parse_json(path.read_bytes(), str(path)), str(path))


def normalize_numbers(value: Any) -> Any:
    """Convert floats without a fraction, such as ``1e4``, to int; also in mappings and lists."""
    if isinstance(value, Mapping):
        return {key: normalize_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normalize_numbers(item) for item in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a key, or those below it if it is a section, dotted, with their values."""
    if not isinstance(value, Mapping):
        yield key, value
        return
    for name, below in value.items():
        yield from leaves(f"{key}.{name}", below)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, or ``None`` if all are unlike it."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=_LIKE)
    return found[0] if found else None


def reject_unknown(
    prefix: str,
    keys: Iterable[Any],
    known: Iterable[Any],
    synonyms: Mapping[str, str] | None = None,
) -> None:
    """Raise a ValueError that names the first unknown key, and the most similar known one, if any.

    ``prefix``, such as ``replay.``, is put before the keys in the message.
    """
    known, synonyms = list(map(str, known)), synonyms or {}
    key = next((key for key in map(str, keys) if key not in known), None)
    if key is None:
        return
    meant = synonyms.get(prefix + key, synonyms.get(key))
    if meant in (None, prefix + key):
        near = nearest(key, known)
        meant = near and prefix + near
    if meant:
        hint = f"Did you mean {meant}?"
    elif len(known) <= _MAX_LISTED:
        hint = f"Known keys: {', '.join(known)}."
    else:
        hint = "`erjepa configs show NAME` shows every key."
    raise ValueError(f"unknown config key {prefix}{key}. {hint}")


def _field(value: Any, error: Mapping[str, Any]) -> str:
    """Return the path of an error, without the names of union types that pydantic adds."""
    place = ""
    for part in error["loc"]:
        if isinstance(value, list) and isinstance(part, int):
            place, value = f"{place}[{part}]", value[part]
        elif isinstance(value, Mapping) and (
            part in value or error["type"] == "missing"
        ):
            place, value = f"{place}.{part}", value.get(part)
    return place.lstrip(".")
