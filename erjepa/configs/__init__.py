"""Configs: files by name, what they may say, and the whole of one as text.

``files`` reads a YAML file, what it starts from and overrides; ``schema`` says every key with
its type, default and bounds; ``reading`` holds a config against it; ``text`` writes one in full.
"""

from erjepa.configs.command_line import parse
from erjepa.configs.files import (
    chain,
    config_names,
    config_path,
    load,
    merge,
    prepare,
    require_files,
)
from erjepa.configs.reading import reject_unknown
from erjepa.configs.schema import complete

__all__ = [
    "chain",
    "complete",
    "config_names",
    "config_path",
    "load",
    "merge",
    "parse",
    "prepare",
    "reject_unknown",
    "require_files",
]
