"""A function of the user's by its dotted path."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any


def function_at(key: str, path: str, known: Sequence[str]) -> Callable[..., Any]:
    """The function at a dotted path.

    Args:
        key (str): of the section ``replay``, whose value is ``path``.
        path (str): such as "my_package.replay.newest".
        known (Sequence[str]): the names that the key has besides.

    Returns:
        Callable[..., Any]: the function.

    Raises:
        ValueError: naming the key, if the path leads to no function.
    """
    module, dot, attribute = str(path).rpartition(".")
    if not (module and attribute):
        raise ValueError(
            f"replay.{key} must be one of {', '.join(known)}, or the dotted path of a "
            f"function, got {path!r}"
        )
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"replay.{key}={path!r} cannot be imported ({error}); check the path and "
            f"that its module is on PYTHONPATH"
        ) from error
    if not callable(function):
        raise ValueError(f"replay.{key}={path!r} is not a function")
    return function
