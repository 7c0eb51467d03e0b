"""Load and check a config as a typed :class:`Config`."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from erjepa.configs.component import COMPONENT
from erjepa.configs.files import config_path, merged, with_overrides
from erjepa.configs.schema import COMPONENTS, KEYS, PROFILER, Config, Stop, Validation
from erjepa.configs.synonyms import SYNONYMS
from erjepa.replay import ReplaySettings
from erjepa.utils.checked import checked, normalize_numbers, reject_unknown
from erjepa.utils.files import CONFIG, moved_along

_NAMES = re.compile(r"\$\{[\s.]*(\w*)")  # a key, or a resolver, within an interpolation
_SECTIONS = {"stop": Stop, "validation": Validation, "replay": ReplaySettings}


def load(name: str, overrides: Sequence[str] = ()) -> Config:
    """Load a config with its ``defaults`` and overrides, and check it.

    The ``output_dir`` of a run's own config is the folder that it is in: the run may have been
    moved or copied, and the runs that it started from along with it. Another run can start with it
    and a ``continue_from`` of its own, even if the run was resumed. Arguments as in
    :func:`~erjepa.configs.config_path` and :func:`~erjepa.configs.with_overrides`.

    Raises:
        FileNotFoundError: if there is no such config.
        ValueError: if a file or an override cannot be read, or a key is unknown, missing or
            invalid. The message names the first of these, its value and what is allowed.
    """
    values, file = merged(name), Path(config_path(name))
    if file.name == CONFIG:
        values = _where_they_are(values, file.parent)
        _unset_start(values, overrides)
    return read(with_overrides(values, overrides))


def _where_they_are(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the config of a run, which is in ``folder`` now, with the paths of now: its own and
    those of the runs that it started from.
    """
    then = resolved(values)

    def now(paths: Any) -> Any:
        if isinstance(paths, list):
            return [now(path) for path in paths]
        if isinstance(paths, str):
            return str(moved_along(paths, then.get("output_dir", ""), folder))
        return paths  # null, or refused later

    starts = ("continue_from", "init_from", "base_adapters")
    found = {key: now(then[key]) for key in starts if key in then}
    if memories := (then.get("replay") or {}).get("init_from"):
        found["replay"] = {**values["replay"], "init_from": now(memories)}
    return {**values, **found, "output_dir": str(folder)}


def resolved(source: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve the interpolations of a config's values, and ``~/`` in paths; nothing is checked."""
    # OmegaConf is slow, so it gets only the keys with interpolations and those they name.
    names = {key: _NAMES.findall(repr(value)) for key, value in source.items()}
    needed = {n for key, named in names.items() if named for n in (key, *named)}
    part = {key: value for key, value in source.items() if key in needed}
    try:
        part = OmegaConf.to_container(OmegaConf.create(part), resolve=True)
    except (OmegaConfBaseException, ImportError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    return _expanded({**source, **part})


def _expanded(value: Any) -> Any:
    """Copy a value, with the user's home folder for ``~/`` at the start of texts."""
    if isinstance(value, dict):
        return {key: _expanded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    is_path = isinstance(value, str) and value.startswith("~/")
    return os.path.expanduser(value) if is_path else value


def read(source: Mapping[str, Any]) -> Config:
    """Check the values of a config, interpolations unresolved, and return the config."""
    values = resolved(source)
    reject_unknown("", values, KEYS, SYNONYMS)
    for key, section in _SECTIONS.items():
        given = values.pop(key, None)
        if given is None:
            continue  # the default applies
        if not isinstance(given, Mapping):
            raise ValueError(
                f"{key} is a section of keys, {key}.KEY=VALUE, got {given!r}"
            )
        reject_unknown(f"{key}.", given, [f.name for f in fields(section)], SYNONYMS)
        values[key] = given
    profiler = values.get("profiler")
    if isinstance(profiler, Mapping):
        values["profiler"] = {COMPONENT: PROFILER, **profiler}
    elif profiler is None:
        values.pop("profiler", None)  # the default applies
    for key, value in values.items():
        signature = COMPONENTS.get(key)
        if signature is None:
            values[key] = normalize_numbers(value)
        elif value is not None or not hasattr(Config, key):
            values[key] = signature.read(key, value, SYNONYMS)
    return _continued(checked(Config, {**values, "source": source}, ""))


def _unset_start(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Unset what only the run's own start had: resuming and, if the overrides set another
    ``continue_from``, the run's own and the keys that it sets.
    """
    if values.get("resume_from_checkpoint") is True:
        values |= {"resume_from_checkpoint": False, "resume_changes": None}
    names = [override.lstrip("~").partition("=")[0] for override in overrides]
    if "continue_from" in names:
        values |= {"continue_from": None, "init_from": None}
        if replay := values.get("replay"):
            values["replay"] = {**replay, "init_from": None}


def _continued(config: Config) -> Config:
    """Set the keys that ``continue_from`` stands for."""
    start, replay = config.continue_from, config.replay
    if start is None:
        return config

    def start_of(key: str, given: Any) -> Any:
        if isinstance(given, list) and start in given:
            return given  # a list of memories, with that of continue_from
        if given not in (None, start):
            runs = ",".join([start, *(given if isinstance(given, list) else [given])])
            both = f", or both: {key}=[{runs}]" if "replay" in key else ""
            raise ValueError(
                f"continue_from={start} sets {key}, but {key}={given}; set one of the two{both}"
            )
        return start

    if replay.weight:
        memory = start_of("replay.init_from", replay.init_from)
        replay = replace(replay, init_from=memory)
    weights = start_of("init_from", config.init_from)
    return replace(config, init_from=weights, replay=replay)
