"""Configs by name, and unknown keys as errors, in front of torchtune's config system."""

import difflib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torchtune import config
from torchtune.config._utils import _get_component_from_path


def config_names(folder: str = ".") -> list[str]:
    """Names of the packaged configs: of runs, or those in ``folder`` of the configs."""
    return sorted(
        Path(entry.name).stem
        for entry in (files("erjepa_configs") / folder).iterdir()
        if entry.name.endswith(".yaml")
    )


def config_path(name: str, folder: str = ".") -> str:
    """Path of a config given by path or by the name of a packaged one.

    Args:
        name (str): a path, or a bare name such as ``llama3_2_1b_synth``.
        folder (str): folder of the packaged configs to look in, such as ``experiments``.

    Returns:
        str: path of the YAML file.

    Raises:
        FileNotFoundError: naming the packaged configs, if there is no such config.
    """
    if Path(name).is_file():
        return name
    if name in config_names(folder):
        return str(files("erjepa_configs") / folder / f"{name}.yaml")
    raise FileNotFoundError(
        f"config {name}: no such file, and no packaged config of that name. "
        f"Packaged configs: {', '.join(config_names(folder))}."
    )


def prepare() -> None:
    """Make ready to read configs, which may name files of packages: ``${package_dir:NAME}``."""
    # tiktoken caches local tokenizers by path, so a file made anew would be read stale.
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", "")
    OmegaConf.register_resolver(
        "package_dir", lambda package: str(files(package)), replace=True
    )


def parse(recipe_main: Callable[[DictConfig], Any]) -> Callable[[], Any]:
    """``torchtune.config.parse`` that also takes the name of a packaged config.

    Args:
        recipe_main (Callable[[DictConfig], Any]): main function of a recipe.

    Returns:
        Callable[[], Any]: the same, reading the command line.
    """
    torchtune_main = config.parse(recipe_main)

    @functools.wraps(recipe_main)
    def main() -> Any:
        prepare()
        for i, argument in enumerate(sys.argv):
            if argument == "--config" and i + 1 < len(sys.argv):
                sys.argv[i + 1] = config_path(sys.argv[i + 1])
            elif argument.startswith("--config="):
                sys.argv[i] = f"--config={config_path(argument.partition('=')[2])}"
        return torchtune_main()

    return main


def check_keys(cfg: DictConfig, sections: Mapping[str, Iterable[str] | None]) -> None:
    """Reject keys that nothing reads.

    Args:
        cfg (DictConfig): the config after overrides.
        sections (Mapping[str, Iterable[str] | None]): every known top-level key; for a
            section without ``_component_``, the keys it may have. A component's keys are
            the parameters of the function or class it names.

    Raises:
        ValueError: naming the first unknown key and the nearest known one.
    """
    reject_unknown("", cfg, sections)
    for section, keys in sections.items():
        node = cfg.get(section)
        if not OmegaConf.is_dict(node):
            continue
        if "_component_" in node:
            keys = _parameters(node["_component_"])
        if keys is not None:
            reject_unknown(f"{section}.", node, ["_component_", *keys])


def reject_unknown(prefix: str, keys: Iterable[Any], known: Iterable[Any]) -> None:
    """Reject keys that are not known.

    Args:
        prefix (str): what stands before the keys in messages, such as ``replay.``.
        keys (Iterable[Any]): keys that are given.
        known (Iterable[Any]): keys that may be given.

    Raises:
        ValueError: naming the first unknown key and the nearest known one.
    """
    known = list(map(str, known))
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0)
            hint = f" Did you mean {prefix}{near[0]}?" if near else ""
            raise ValueError(f"unknown config key {prefix}{key}.{hint}")


def _parameters(component: str) -> list[str] | None:
    parameters = inspect.signature(_get_component_from_path(component)).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return list(parameters)
