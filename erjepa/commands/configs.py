"""Lists, shows, copies and checks configs.

erjepa configs ls                          # names, with their first lines
erjepa configs show NAME [key=value ...]   # every key, in full
erjepa configs cp NAME FILE [key=value ...]
erjepa configs validate FILE [key=value ...]
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from erjepa.utils.command_line import CommandLine


def main(arguments: Sequence[str]) -> None:
    """Run a command."""
    parser = CommandLine(prog="erjepa configs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ls")
    for name in ("show", "cp", "validate"):
        command = commands.add_parser(name)
        command.add_argument("config", help="path, or name of a packaged config")
        if name == "cp":
            command.add_argument("file", type=Path)
        command.add_argument("overrides", nargs="*", metavar="key=value")
    chosen = parser.parse_args(arguments)
    with parser.errors(chosen):
        try:
            if chosen.command == "ls":
                _list()
            else:
                _read(chosen)
        except BrokenPipeError:  # of `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _list() -> None:
    from erjepa.configs import config_names, config_path

    names = config_names()
    for name in names:
        first = Path(config_path(name)).read_text("utf-8").partition("\n")[0]
        print(f"{name:<{max(map(len, names))}}  {first.removeprefix('# ')}")


def _read(chosen: argparse.Namespace) -> None:
    from erjepa.configs import load
    from erjepa.configs.text import as_yaml

    cfg = load(chosen.config, chosen.overrides)
    if chosen.command == "validate":
        print(f"{chosen.config}: every key is known and every value makes sense")
        return
    changes = f"With {' '.join(chosen.overrides)}"
    text = as_yaml(cfg, chosen.config, *([changes] if chosen.overrides else []))
    if chosen.command == "show":
        print(text, end="")
        return
    with chosen.file.open("x", encoding="utf-8") as file:
        file.write(text)
    print(f"{chosen.config} is in {chosen.file}")
