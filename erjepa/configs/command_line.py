"""The command line of a recipe."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from erjepa.configs.reading import load
from erjepa.configs.schema import Config
from erjepa.utils.command_line import CommandLine


def parse(recipe_main: Callable[[Config], Any]) -> Callable[[], Any]:
    """``torchtune.config.parse`` for configs by name, checked before anything is loaded.

    A user's error, such as a config that makes no sense, ends the process with one message.
    """

    @functools.wraps(recipe_main)
    def main() -> Any:
        parser = CommandLine(prog=_program(), description=recipe_main.__doc__)
        parser.add_argument(
            "--config",
            required=True,
            metavar="NAME",
            help="path, or name of a packaged config: erjepa configs ls",
        )
        parser.add_argument(
            "overrides", nargs="*", metavar="key=value", help="any key; ~key removes it"
        )
        arguments = parser.parse_intermixed_args()
        with parser.errors(arguments):
            sys.exit(recipe_main(load(arguments.config, arguments.overrides)))

    return main


def _program() -> str:
    """What was typed: a launcher of ranks runs ``python -m NAME``."""
    name = Path(sys.argv[0]).name
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.parent if name == "__main__.py" and spec else name
