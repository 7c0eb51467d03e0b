"""Configs: YAML files by name, their schema, and writing one out in full.

``files`` loads a YAML file with its ``defaults`` and overrides; ``schema`` defines the type,
default and bounds of every key; ``reading`` checks the values and returns a ``Config``;
``component`` builds the sections with ``_component_``; ``base_model`` finds the base model's files;
``text`` writes a config in full.
"""

from erjepa.configs.base_model import require_files
from erjepa.configs.command_line import parse
from erjepa.configs.component import Component, components, weights_of
from erjepa.configs.files import (
    chain,
    config_names,
    config_path,
    merge,
    merged,
    with_overrides,
)
from erjepa.configs.reading import load, read, resolved
from erjepa.configs.schema import Config, Stop

__all__ = [
    "Component",
    "Config",
    "Stop",
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
