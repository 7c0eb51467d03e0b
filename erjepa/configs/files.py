"""Load configs by name or path, with the configs they inherit from and overrides."""

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from importlib.resources import files
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from erjepa.configs.component import COMPONENT
from erjepa.utils.checked import nearest
from erjepa.utils.files import config_of_run

_YAML = ("{", "[", '"', "'", "!", "|", ">", "&")  # begin what is not a plain text
_NULLS = ("", "~", "null", "Null", "NULL", "None")
# Keys of texts that may look like numbers, such as output_dir=202601.
_TEXTS = {
    *("output_dir", "source", "continue_from", "init_from", "checkpoint_dir", "path"),
    "max_filename",
}


def config_names(folder: str = ".") -> list[str]:
    """Return the sorted names of the packaged configs in ``folder``."""
    return sorted(
        Path(entry.name).stem
        for entry in (files("erjepa_configs") / folder).iterdir()
        if entry.name.endswith(".yaml")
    )


def config_path(name: str, folder: str = ".") -> str:
    """Return the path of a config's YAML file.

    Args:
        name: a path, the name of a packaged config such as ``llama3_2_1b_synth``, or the output
            folder of a run or one of its checkpoints.
        folder: folder of the packaged configs to look in, such as ``experiments``.

    Raises:
        FileNotFoundError: if there is no such config. The message lists the packaged ones.
    """
    if Path(name).is_file():
        return name
    if name in config_names(folder):
        return str(files("erjepa_configs") / folder / f"{name}.yaml")
    if Path(name).is_dir() and (of_run := config_of_run(Path(name))):
        return str(of_run)
    known = config_names(folder)
    begins = (one for one in known if name and one.startswith(name))
    near = next(begins, None) or nearest(name, known)
    hint = f"Did you mean {near}?" if near else f"Packaged configs: {', '.join(known)}."
    raise FileNotFoundError(
        f"config {name}: no such file, and no packaged config of that name. {hint}"
    )


def _prepare() -> None:
    """Register the resolver ``${package_dir:NAME}``: the folder of a Python package."""
    # tiktoken caches local files by path and would not notice a changed tokenizer.
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", "")
    OmegaConf.register_resolver(
        "package_dir", lambda package: str(files(package)), replace=True
    )


def merged(name: str) -> dict[str, Any]:
    """Return the values of a config, merged with its ``defaults`` but unchecked.

    A file with ``defaults: NAME`` inherits from that config and sets only the keys that differ. A
    section with ``_component_`` replaces the inherited one, including all its arguments.
    Interpolations are not resolved. Argument as in :func:`config_path`.

    Raises:
        FileNotFoundError: if there is no such config.
        ValueError: naming the file, if one cannot be read.
    """
    return _levels(name)[-1]


def _levels(name: str) -> list[dict[str, Any]]:
    """Return the merged values: empty, then after each file from the base up."""
    from_base_up = (values for _, values in reversed(chain(name)))
    return list(accumulate(from_base_up, merge, initial=dict[str, Any]()))


def inherits_eval_dataset(name: str, overrides: Sequence[str]) -> bool:
    """Return whether a file or the overrides replace an inherited ``dataset`` but leave the
    inherited ``eval_dataset``.
    """
    levels = _levels(name)
    levels.append(with_overrides(levels[-1], overrides))
    inherits = False
    for before, after in pairwise(levels):
        if after.get("eval_dataset") != before.get("eval_dataset"):
            inherits = False
        elif _places(after.get("dataset")) != _places(before.get("dataset")):
            inherits = True
    return inherits and levels[-1].get("eval_dataset") is not None


def _places(section: Any) -> list[list[Any]]:
    """Return what names the data of each dataset of a section."""
    parts = section if isinstance(section, list) else [section]
    sections = [part for part in parts if isinstance(part, Mapping)]
    keys = (COMPONENT, "source", "subset", "name")
    return [[part.get(key) for key in keys] for part in sections]


def chain(name: str, folder: str = ".") -> list[tuple[str, dict[str, Any]]]:
    """Return path and values of a config file, then of its ``defaults``, and so on.

    Arguments as in :func:`config_path`.
    """
    _prepare()
    path = config_path(name, folder)
    configs: list[tuple[str, dict[str, Any]]] = []
    while True:
        if path in dict(configs):
            raise ValueError(f"{path}: its defaults lead back to itself")
        values = deepcopy(_read(path, os.stat(path).st_mtime_ns))
        defaults = values.pop("defaults", None)
        configs.append((path, values))
        if defaults is None:
            return configs
        folder_of_file = Path(path).parent
        beside = (folder_of_file / f"{defaults}.yaml", folder_of_file / str(defaults))
        try:
            others = (str(f) for f in beside if f.is_file() and str(f) != path)
            known = next(others, str(defaults))
            path = config_path(known, folder)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{path}: defaults: {error}") from None


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``changes`` into a copy of ``base``, key by key within sections.

    A section of ``changes`` with ``_component_`` replaces that of ``base``. The keys of entries of a
    list are their numbers, as texts.
    """
    changed = {key: _merged(base.get(key), value) for key, value in changes.items()}
    return {**base, **changed}


def _merged(before: Any, value: Any) -> Any:
    if not isinstance(value, Mapping) or COMPONENT in value:
        return value
    if isinstance(before, Mapping):
        return merge(before, value)
    places = {str(i) for i in range(len(before))} if isinstance(before, list) else set()
    if value and value.keys() <= places:
        return [_merged(part, value.get(str(i), part)) for i, part in enumerate(before)]
    return value


@cache
def _read(path: str, changed: int) -> dict[str, Any]:
    """Load a YAML file; ``changed`` is its modification time, a key of the cache."""
    try:
        cfg = OmegaConf.load(path)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, OSError) as error:
        message = " ".join(str(error).split())
        raise ValueError(f"{path}: not YAML: {message}") from None
    if not OmegaConf.is_dict(cfg):
        raise ValueError(f"{path}: expected keys and values, not a list")
    return OmegaConf.to_container(cfg, resolve=False)


def with_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply overrides, as on the command line, to values from :func:`merged`.

    An override is ``key=value``, ``section.key=value``, or ``~key`` to remove a key.
    ``section=path`` replaces a component and its arguments, whatever the order of the overrides.

    Raises:
        ValueError: naming the override, if it cannot be read.
    """
    changes = OmegaConf.create()
    for override in overrides:
        key, separator, value = override.partition("=")
        if key.startswith("~"):
            values = _without(values, key[1:], override)
            continue
        if not separator or not key:
            raise ValueError(f"{override}: expected key=value, or ~key to remove it")
        section = values.get(key)
        if section is None and any(o.startswith(f"{key}.") for o in overrides):
            section = {COMPONENT: None}  # key.NAME=... are its arguments
        # Of datasets there may be a list.
        parts = section if isinstance(section, list) else [section]
        is_component = any(isinstance(p, Mapping) and COMPONENT in p for p in parts)
        names_it = not value.startswith(("{", "[")) and value not in _NULLS
        if is_component and names_it:
            key = f"{key}.{COMPONENT}"
        try:
            OmegaConf.update(changes, key, _parsed(key, value))
        except (yaml.YAMLError, OmegaConfBaseException) as error:
            message = " ".join(str(error).split())
            raise ValueError(f"{override}: {message}") from None
        except ValueError:  # of OmegaConf, for a key below a list
            section = key.rpartition(".")[0]
            raise ValueError(
                f"{override}: {section} is a list; set it as a whole"
            ) from None
    return merge(values, OmegaConf.to_container(changes, resolve=False))


@cache
def _parsed(key: str, text: str) -> Any:
    """Parse the value of an override: YAML, except for texts without quotes, which stay whole.

    YAML would cut them at ``#``, and at ``: `` make keys of them. As in torchtune, None is null.
    """
    if text in _NULLS:
        return None
    is_plain = not text.startswith(_YAML)
    if is_plain and key.rpartition(".")[2] in _TEXTS:
        return text
    try:
        value = OmegaConf.from_dotlist([f"value={text}"])
    except yaml.YAMLError:
        if is_plain:
            return text
        raise
    except ValueError as error:  # of a tag, such as !!int
        raise yaml.YAMLError(str(error)) from None
    parsed = OmegaConf.to_container(value, resolve=False)["value"]
    is_text = parsed is None or isinstance(parsed, str | dict | list)
    return text if is_plain and is_text else parsed


def _without(values: dict[str, Any], key: str, override: str) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    if first not in values or (rest and not isinstance(values[first], Mapping)):
        raise ValueError(f"{override}: the config has no such key to remove")
    if not rest:
        return {name: value for name, value in values.items() if name != first}
    return {**values, first: _without(values[first], rest, override)}
