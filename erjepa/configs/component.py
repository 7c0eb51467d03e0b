"""Config sections with ``_component_``: a function or class, and its arguments."""

import copy
import importlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field
from torchtune.config._errors import InstantiationError
from torchtune.config._utils import _get_component_from_path

from erjepa.utils.checked import checked, nearest, normalize_numbers, reject_unknown

COMPONENT = "_component_"
WEIGHT = "weight"  # key of a dataset in a list, in addition to its arguments
_DATA = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx", ".txt")
_Weight: Any = Annotated[float, Field(gt=0, allow_inf_nan=False)] | None


@dataclass(frozen=True)
class Component:
    """A function or class that a config names, with its arguments; :meth:`build` calls it."""

    path: str  # dotted path of the function or class
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weight: int | float | None = None  # sampling weight, if it is a dataset in a list

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def function(self) -> Callable[..., Any]:
        return _get_component_from_path(self.path)

    def get(self, argument: str) -> Any:
        """Return an argument, or the function's default for it; ``None`` if it has neither."""
        if argument in self.arguments:
            return self.arguments[argument]
        parameter = inspect.signature(self.function).parameters.get(argument)
        if parameter is None or parameter.default is parameter.empty:
            return None
        return parameter.default

    def takes(self, argument: str) -> bool:
        return argument in inspect.signature(self.function).parameters

    def with_arguments(self, **arguments: Any) -> "Component":
        return replace(self, arguments={**self.arguments, **arguments})

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; ``kwargs`` take precedence over the config's arguments."""
        arguments = copy.deepcopy(dict(self.arguments))
        return self.function(*args, **{**arguments, **kwargs})

    def as_dict(self) -> dict[str, Any]:
        """Return the section as it is in YAML."""
        weight = {} if self.weight is None else {WEIGHT: self.weight}
        return {COMPONENT: self.path, **self.arguments, **weight}


# The value of ``dataset`` or ``eval_dataset``: one dataset, or several to concatenate.
Components = Component | list[Component]


def components(section: Components) -> list[Component]:
    return section if isinstance(section, list) else [section]


def weights_of(section: Components) -> list[float] | None:
    """Return the weights of a list of datasets, or ``None`` if it has none."""
    parts = components(section)
    return [part.weight for part in parts if part.weight is not None] or None


@dataclass(frozen=True)
class Signature:
    """How the recipe calls the component of a key, and the types of its arguments."""

    positional: int = 0  # number of positional arguments that the recipe passes
    given: tuple[str, ...] = ()  # names of the keyword arguments that the recipe passes
    # Types and bounds of arguments. Others are checked against the component's annotations,
    # where these are plain types.
    types: Mapping[str, Any] = field(default_factory=dict)
    may_be_list: bool = False  # whether it accepts a list of components, with weights

    def read(self, key: str, value: Any, synonyms: Mapping[str, str]) -> Any:
        """Check the value of a key; return the fields of its :class:`Component`, or a list.

        Raises:
            ValueError: if the path does not name a component, or arguments are unknown, missing
                or of the wrong type. The message names the key.
        """
        if isinstance(value, str):  # a path without arguments
            value = {COMPONENT: value}
        if not (self.may_be_list and isinstance(value, list) and value):
            return self._read(key, value, synonyms)
        sections = []
        for i, part in enumerate(value):
            place, weight = f"{key}[{i}]", None
            if isinstance(part, Mapping):
                part = dict(part)
                weight = part.pop(WEIGHT, None)
            checked(_Weight, weight, f"{place}.{WEIGHT}")
            sections.append({**self._read(place, part, synonyms), WEIGHT: weight})
        return sections

    def _read(
        self, key: str, value: Any, synonyms: Mapping[str, str]
    ) -> dict[str, Any]:
        path = self._path(key, value)
        try:
            parameters = inspect.signature(Component(path).function).parameters
        except (InstantiationError, ValueError, TypeError) as error:
            cause = str(error.__cause__ or error).strip()
            meant = _similar(path)
            hint = f". Did you mean {meant}?" if meant else ""
            raise ValueError(
                f"{key}={path} is not a component: {cause}{hint}"
            ) from None
        arguments = {name: v for name, v in value.items() if name != COMPONENT}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        ours = list(parameters)[: self.positional]
        if not takes_any:
            if unknown := [name for name in self.given if name not in parameters]:
                raise ValueError(
                    f"{key}={path} has no parameter {unknown[0]}, which the recipe sets"
                )
            if self.may_be_list and "source" in arguments.keys() - parameters.keys():
                raise ValueError(
                    f"{key}={path} takes no source; {_to_read(key, arguments['source'])}"
                )
            known = [name for name in parameters if name not in ours]
            reject_unknown(f"{key}.", arguments, known, synonyms)
        variadic = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
        for name, parameter in parameters.items():
            is_set = name in (*ours, *self.given) or arguments.get(name) is not None
            has_default = parameter.default is not parameter.empty
            if is_set or has_default or parameter.kind in variadic:
                continue
            # A misspelt argument may be one of another function, to which it is passed on.
            if misspelt := nearest(name, sorted(arguments.keys() - parameters.keys())):
                reject_unknown(f"{key}.", [misspelt], [name])
            if name not in arguments:
                raise ValueError(
                    f"{key}={path} needs {key}.{name}, which has no default"
                )
        for name, given in arguments.items():
            if (kind := self._type(name, given, parameters.get(name))) is not None:
                typed = checked(kind, normalize_numbers(given), f"{key}.{name}")
                arguments[name] = typed if isinstance(typed, int) else given
        return {"path": path, "arguments": arguments}

    def _path(self, key: str, value: Any) -> str:
        """Return the path of the component that the value of a key names."""
        path = value.get(COMPONENT) if isinstance(value, Mapping) else value
        if self.may_be_list and isinstance(path, str) and _is_source(path):
            raise ValueError(f"{key}={path} is not a component; {_to_read(key, path)}")
        if self.may_be_list and path is None and "source" in (value or ()):
            raise ValueError(
                f"{key}.source={value['source']} needs {key}, the component that reads it; "
                f"{_to_read(key, value['source'])}"
            )
        if not (isinstance(path, str) and isinstance(value, Mapping)):
            raise ValueError(
                f"{key} must be the dotted path of a component, {key}=PATH, with its "
                f"arguments as {key}.NAME, got {value!r}"
            )
        return path

    def _type(self, name: str, given: Any, parameter: inspect.Parameter | None) -> Any:
        """Return the type to check an argument against, ``None`` for any."""
        if name in self.types or parameter is None:
            return self.types.get(name)
        # Many parameters are annotated ``int`` but have the default ``None``.
        is_checked = _is_plain(parameter.annotation) and given is not parameter.default
        return parameter.annotation if is_checked else None


def _to_read(key: str, source: str) -> str:
    """Return what a message says of a source where a component is needed."""
    return (
        "to read a file or a dataset of the hub, set "
        f"{key}=erjepa.datasets.paired_dataset {key}.source={source}"
    )


def _similar(path: str) -> str | None:
    """Return the path of a similar name in the same module, if there is one."""
    module, _, name = path.rpartition(".")
    try:
        found = nearest(name, dir(importlib.import_module(module)))
    except (ImportError, ValueError):
        return None
    return found and f"{module}.{found}"


def _is_source(path: str) -> bool:
    """Return whether a value names data rather than a component."""
    return "/" in path or Path(path).suffix in _DATA or Path(path).exists()


def _is_plain(annotation: Any) -> bool:
    """Return whether a type can be checked: numbers, strings, literals, ``None``, and lists and
    mappings of these.
    """
    if get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    if get_origin(annotation) in (Union, types.UnionType, Sequence, list, dict):
        return all(map(_is_plain, get_args(annotation)))
    plain = (int, float, bool, str, type(None))
    return get_origin(annotation) is Literal or annotation in plain
