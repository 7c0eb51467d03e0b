"""Registries of the rules of ``replay``, by name or by the dotted path of a function."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Rule = TypeVar("Rule")
Function = TypeVar("Function", bound=Callable[..., Any])


class Registry(Generic[Rule]):
    """The rules for one key of ``replay``; ``kind`` builds a rule from a function and traits."""

    def __init__(self, key: str, kind: Callable[..., Rule]) -> None:
        self._key = key
        self._kind = kind
        self._rules: dict[str, Rule] = {}
        self._rule_of: dict[Callable[..., Any], Rule] = {}

    def register(self, name: str, **traits: Any) -> Callable[[Function], Function]:
        """Return a decorator that registers a function as a rule and returns it unchanged."""

        def decorator(function: Function) -> Function:
            self._rules[name] = self._rule_of[function] = self._kind(function, **traits)
            return function

        return decorator

    def names(self, fits: Callable[[Rule], bool]) -> list[str]:
        """Return the names of the registered rules that fit."""
        return [name for name, rule in self._rules.items() if fits(rule)]

    def find(self, name: str) -> Rule:
        """Return the rule with that name, or the rule of the function at that dotted path.

        Raises:
            ValueError: if there is none; the message names the key.
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
        return self._rule_of.get(function) or self._kind(function)


@dataclass(frozen=True)
class Selection:
    """A selection rule, see ``selection.py``.

    Args:
        choose: takes a ``Request`` and returns slots.
        needs_addresses: whether it reads addresses; assumed of unregistered functions.
        of_memory: whether it returns slots of the memory rather than indices of the step's pairs.
    """

    choose: Callable[..., list[int]]
    needs_addresses: bool = True
    of_memory: bool = True

    @property
    def draws_early(self) -> bool:
        """Whether it can draw before the step, as ``replay.share`` needs."""
        return self.of_memory and not self.needs_addresses


@dataclass(frozen=True)
class Retention:
    """A retention rule, see ``retention.py``.

    Args:
        evict: returns the slot to evict, or ``None`` to discard the new pair.
        in_batches: whether it takes an ``Offer``; other rules read the memory themselves.
        by_origin: whether it distinguishes slots by their origin.
        by_target: whether it distinguishes them by origin and target.
        counts_replays: whether replays lower the priority of a slot.
        at_random: whether it evicts at random, whatever the priorities.
    """

    evict: Callable[..., int | None]
    in_batches: bool = False
    by_origin: bool = False
    by_target: bool = False
    counts_replays: bool = True
    at_random: bool = False


SELECTIONS: Registry[Selection] = Registry("selection", Selection)
RETENTIONS: Registry[Retention] = Registry("retention", Retention)
