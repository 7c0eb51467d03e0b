"""Configs: files by name, what they may say, and the whole of one as text.

``files`` reads a YAML file, what it starts from and overrides; ``schema`` says every key with
its type, default and bounds; ``reading`` makes a ``Config`` of both; ``component`` is what a
section with ``_component_`` names; ``text`` writes a config in full.
"""

from erjepa.configs.command_line import parse
from erjepa.configs.component import Component, Components, components, weights_of
from erjepa.configs.files import (
    chain,
    config_names,
    config_path,
    merge,
    merged,
    with_overrides,
)
from erjepa.configs.reading import load, read, resolved
from erjepa.configs.schema import Config, Stop, Validation, require_files

__all__ = [
    "Component",
    "Components",
    "Config",
    "Stop",
    "Validation",
    "chain",
    "components",
    "config_names",
    "config_path",
    "load",
    "merge",
    "merged",
    "parse",
    "read",
    "require_files",
    "resolved",
    "weights_of",
    "with_overrides",
]
