"""Holds the values of a config against the types that a schema gives."""

import difflib
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from torchtune.config._errors import InstantiationError
from torchtune.config._utils import _get_component_from_path

from erjepa.configs.files import COMPONENT


@dataclass(frozen=True)
class AtLeast:
    """Bounds of a number.

    Args:
        least (float): the number is this or more.
        excluded (bool): it is more than this.
        below (float): it is less than this.
    """

    least: float
    excluded: bool = False
    below: float = math.inf

    def __str__(self) -> str:
        least = f"{'above' if self.excluded else 'of at least'} {self.least:.12g}"
        return (
            least if self.below == math.inf else f"{least} and below {self.below:.12g}"
        )

    def holds(self, value: float) -> bool:
        over = value > self.least if self.excluded else value >= self.least
        return over and value < self.below


@dataclass(frozen=True, eq=False)
class Settings:
    """A section whose keys are the parameters of a function that checks them.

    Args:
        owner (Callable[..., Any]): raises a ValueError for values that make no sense.
        absent (Mapping[str, Any]): what a config without the section has.
    """

    owner: Callable[..., Any]
    absent: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Component:
    """A section whose keys are the parameters of what its ``_component_`` names.

    Args:
        positional (int): how many arguments the recipe gives first.
        given (tuple[str, ...]): what the recipe gives by name.
        default (str | None): the component where the section names none.
        arguments (Mapping[str, Any]): types and bounds of arguments. Others are held against
            the annotations of the component, where these are plain types.
        may_be_list (bool): whether a list of components will do.
        listed (Mapping[str, Any]): types and bounds of the keys that a component has in a list
            besides its arguments.
    """

    positional: int = 0
    given: tuple[str, ...] = ()
    default: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    may_be_list: bool = False
    listed: Mapping[str, Any] = field(default_factory=dict)


def read_section(
    prefix: str,
    owner: Callable[..., Any],
    values: Mapping[str, Any],
    synonyms: Mapping[str, str],
) -> dict[str, Any]:
    """Every key of a section: as it is given, or its default.

    Args:
        prefix (str): what stands before the keys in messages, such as ``replay.``.
        owner (Callable[..., Any]): a dataclass or function; its parameters are the keys,
            with types, bounds and defaults. It is called with them.
        values (Mapping[str, Any]): keys that are given.
        synonyms (Mapping[str, str]): what users may call keys, to the key.

    Returns:
        dict[str, Any]: in the order in which they are given; then defaults.

    Raises:
        ValueError: for the first key that is unknown, missing or has a value that makes no
            sense; it names the key, the value and what is allowed.
    """
    parameters = inspect.signature(owner).parameters
    reject_unknown(prefix, values, parameters, synonyms)
    read = {
        key: _read_value(prefix + key, parameters[key].annotation, value, synonyms)
        for key, value in values.items()
    }
    for key, parameter in parameters.items():
        if key in read:
            continue
        if parameter.default is inspect.Parameter.empty:
            raise ValueError(f"the config has no {prefix}{key}, which has no default")
        read[key] = _read_value(
            prefix + key, parameter.annotation, parameter.default, synonyms
        )
    owner(**read)
    return read


def reject_unknown(
    prefix: str,
    keys: Iterable[Any],
    known: Iterable[Any],
    synonyms: Mapping[str, str] | None = None,
) -> None:
    """Reject keys that are not known.

    Args:
        prefix (str): what stands before the keys in messages, such as ``replay.``.
        keys (Iterable[Any]): keys that are given.
        known (Iterable[Any]): keys that may be given.
        synonyms (Mapping[str, str] | None): what users may call keys, to the key.

    Raises:
        ValueError: naming the first unknown key and the nearest known one.
    """
    known, synonyms = list(map(str, known)), synonyms or {}
    for key in map(str, keys):
        if key not in known:
            meant = synonyms.get(prefix + key, synonyms.get(key))
            near = difflib.get_close_matches(key, known, n=1, cutoff=0)
            meant = meant or (prefix + near[0] if near else None)
            hint = f" Did you mean {meant}?" if meant else ""
            raise ValueError(f"unknown config key {prefix}{key}.{hint}")


def _read_value(
    key: str, annotation: Any, value: Any, synonyms: Mapping[str, str]
) -> Any:
    """The value as the annotated type; whole floats are whole numbers."""
    alternatives = (
        get_args(annotation)
        if get_origin(annotation) in (Union, types.UnionType)
        else (annotation,)
    )
    wanted, rule = alternatives[0], None
    if get_origin(wanted) is Annotated:
        wanted, rule = get_args(wanted)
    if isinstance(wanted, type) and is_dataclass(wanted):
        rule = Settings(wanted)
    if isinstance(rule, Settings):
        given = rule.absent if value is None else _section(key, value)
        return read_section(f"{key}.", rule.owner, given, synonyms)
    if value is None and type(None) in alternatives:
        return None
    if isinstance(rule, Component):
        if rule.may_be_list and isinstance(value, list) and value:
            return [
                _read_listed(f"{key}[{i}]", rule, part, synonyms)
                for i, part in enumerate(value)
            ]
        return _read_component(key, rule, value, synonyms)
    for alternative in alternatives:
        kind, *bounds = (
            get_args(alternative)
            if get_origin(alternative) is Annotated
            else (alternative,)
        )
        fits, read = _as_type(kind, value)
        if fits and all(bound.holds(read) for bound in bounds):
            return read
    words = " or ".join(_in_words(a) for a in alternatives)
    raise ValueError(f"{key} must be {words}, got {_shown(value)}")


def _as_type(wanted: Any, value: Any) -> tuple[bool, Any]:
    """Whether a value is of a type, and the value as that type."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if get_origin(wanted) is Literal:
        return value in get_args(wanted), value
    if get_origin(wanted) is list:
        if not isinstance(value, list):
            return False, value
        items = [_as_type(get_args(wanted)[0], item) for item in value]
        return all(fits for fits, _ in items), [item for _, item in items]
    if wanted is int:
        whole = is_number and math.isfinite(value) and value == int(value)
        return whole, int(value) if whole else value
    if wanted is float:
        return is_number and math.isfinite(value), value
    return wanted is Any or isinstance(value, wanted), value


def _in_words(wanted: Any) -> str:
    if get_origin(wanted) is Annotated:
        return " ".join(map(_in_words, get_args(wanted)))
    if isinstance(wanted, AtLeast):
        return str(wanted)
    if wanted is type(None):
        return "null"
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(map(str, get_args(wanted)))}"
    if get_origin(wanted) is list:
        return f"a list of {'numbers' if get_args(wanted)[0] is float else 'texts'}"
    names = {bool: "True or False", int: "a whole number", float: "a finite number"}
    return names.get(wanted, "text")


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value)


def _section(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{key} has keys of its own, {key}.KEY=VALUE, got {_shown(value)}"
        )
    return value


def _read_listed(
    key: str, rule: Component, value: Any, synonyms: Mapping[str, str]
) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return _read_component(key, rule, value, synonyms)
    own = {name: v for name, v in value.items() if name not in rule.listed}
    read = _read_component(key, rule, own, synonyms)
    for name in value.keys() & rule.listed.keys():
        read[name] = _read_value(
            f"{key}.{name}", rule.listed[name], value[name], synonyms
        )
    return read


def _read_component(
    key: str, rule: Component, value: Any, synonyms: Mapping[str, str]
) -> dict[str, Any]:
    path = value.get(COMPONENT, rule.default) if isinstance(value, Mapping) else None
    if not isinstance(path, str):
        raise ValueError(
            f"{key} must be the dotted path of a component, {key}=PATH, with its "
            f"arguments as {key}.NAME, got {_shown(value)}"
        )
    try:
        component = _get_component_from_path(path)
        parameters = inspect.signature(component).parameters
    except (InstantiationError, ValueError, TypeError) as error:
        cause = str(error.__cause__ or error).strip()
        raise ValueError(f"{key}={path} is no component: {cause}") from None
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in rule.given:
        if name not in parameters and not takes_any:
            raise ValueError(f"{key}={path} takes no {name}, which the recipe gives it")
    arguments = {name: v for name, v in value.items() if name != COMPONENT}
    ours = list(parameters)[: rule.positional]
    if not takes_any:
        known = [name for name in parameters if name not in ours]
        reject_unknown(f"{key}.", arguments, known, synonyms)
    for name, parameter in parameters.items():
        if (
            parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            and name not in {*ours, *rule.given, *arguments}
        ):
            raise ValueError(f"{key}={path} needs {key}.{name}, which has no default")
    for name, given in arguments.items():
        annotation = rule.arguments.get(name)
        if annotation is None and name in parameters:
            parameter = parameters[name]
            # Many a parameter is annotated as int and None by default.
            if _is_plain(parameter.annotation) and given is not parameter.default:
                annotation = parameter.annotation
        if annotation is not None:
            read = _read_value(f"{key}.{name}", annotation, given, synonyms)
            arguments[name] = read
    return {COMPONENT: path, **arguments}


def _is_plain(annotation: Any) -> bool:
    """Whether values can be held against a type: numbers, texts, choices, or null."""
    if get_origin(annotation) in (Union, types.UnionType):
        return all(map(_is_plain, get_args(annotation)))
    plain = (int, float, bool, str, type(None))
    return get_origin(annotation) is Literal or annotation in plain
