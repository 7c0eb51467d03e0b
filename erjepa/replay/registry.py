"""Rules of the section ``replay`` by name, or by the dotted path of a function."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Rule = TypeVar("Rule")
Function = TypeVar("Function", bound=Callable[..., Any])


class Registry(Generic[Rule]):
    """Rules of one ``key`` of the section ``replay``; ``kind`` makes a rule of a function and its
    traits.
    """

    def __init__(self, key: str, kind: Callable[..., Rule]) -> None:
        self._key = key
        self._kind = kind
        self._rules: dict[str, Rule] = {}
        self._names: dict[Callable[..., Any], str] = {}

    def register(self, name: str, **traits: Any) -> Callable[[Function], Function]:
        """Decorator of the function of a rule, which stays as it is."""

        def decorator(function: Function) -> Function:
            self._rules[name] = self._kind(function, **traits)
            self._names[function] = name
            return function

        return decorator

    def find(self, name: str) -> Rule:
        """The rule of that name, or of the function at that dotted path.

        Raises:
            ValueError: naming the key, if there is none.
        """
        if name in self._rules:
            return self._rules[name]
        where = f"replay.{self._key}"
        module, _, attribute = str(name).rpartition(".")
        if not (module and attribute):
            raise ValueError(
                f"{where} must be one of {', '.join(self._rules)}, or the dotted path of a "
                f"function, got {name!r}"
            )
        try:
            function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"{where}={name!r} cannot be imported ({error}); check the path and that its "
                "module is on PYTHONPATH"
            ) from error
        if not callable(function):
            raise ValueError(f"{where}={name!r} is not a function")
        known = self._names.get(function)
        return self._kind(function) if known is None else self._rules[known]


@dataclass(frozen=True)
class Selection:
    """A rule of ``selection.py``.

    Args:
        choose: takes a ``Request`` and returns slots.
        needs_addresses: whether it reads addresses; a function of the user's may.
        of_memory: whether it returns slots of the memory, not places in the step.
    """

    choose: Callable[..., list[int]]
    needs_addresses: bool = True
    of_memory: bool = True


@dataclass(frozen=True)
class Retention:
    """A rule of ``retention.py``.

    Args:
        evict: returns the slot to evict, or ``None`` to leave the new pair out.
        in_batches: whether it takes an ``Offer``; others read the memory themselves.
        by_origin: whether it tells slots apart by their origin.
        counts_replays: whether a slot that was replayed more often is weaker.
        at_random: whether all slots are equally strong.
    """

    evict: Callable[..., int | None]
    in_batches: bool = False
    by_origin: bool = False
    counts_replays: bool = True
    at_random: bool = False


SELECTIONS: Registry[Selection] = Registry("selection", Selection)
RETENTIONS: Registry[Retention] = Registry("retention", Retention)
