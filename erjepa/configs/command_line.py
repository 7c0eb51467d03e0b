"""The command line of a recipe."""

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig

from erjepa.configs.files import load
from erjepa.configs.schema import complete


def parse(recipe_main: Callable[[DictConfig], Any]) -> Callable[[], Any]:
    """``torchtune.config.parse`` for configs by name, checked before anything is loaded.

    Args:
        recipe_main (Callable[[DictConfig], Any]): main function of a recipe; it is given
            the config with every key.

    Returns:
        Callable[[], Any]: the same, reading the command line. A config that makes no sense
        ends the process with one message.
    """

    @functools.wraps(recipe_main)
    def main() -> Any:
        parser = argparse.ArgumentParser(
            description=recipe_main.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument(
            "--config",
            required=True,
            metavar="NAME",
            help="path, or name of a packaged config: python -m erjepa.configs ls",
        )
        parser.add_argument(
            "overrides", nargs="*", metavar="key=value", help="any key; ~key removes it"
        )
        arguments = parser.parse_intermixed_args()
        try:
            cfg = complete(load(arguments.config, arguments.overrides))
        except (FileNotFoundError, ValueError) as error:
            sys.exit(f"{parser.prog}: {error}")
        sys.exit(recipe_main(cfg))

    return main
