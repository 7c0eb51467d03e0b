"""The command line of a recipe."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchtune import utils

from erjepa.configs.files import inherits_eval_dataset
from erjepa.configs.reading import load
from erjepa.configs.schema import Config
from erjepa.utils.command_line import CommandLine

log = utils.get_logger("INFO")


def parse(recipe_main: Callable[[Config], Any]) -> Callable[[], Any]:
    """Decorate the main function of a recipe, like ``torchtune.config.parse``.

    The result parses ``--config NAME key=value ...`` and passes the checked config to the recipe.
    A user error, such as an invalid config, ends the process with one message.
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
        parser.add_overrides()
        for word in sys.argv[1:]:
            if word.startswith(("--nproc", "--nnodes", "--standalone")):
                parser.error(f"{word} belongs before the recipe: tune run {word} ...")
        arguments = parser.parse_intermixed_args()
        with parser.errors(arguments):
            given = arguments.config, arguments.overrides
            config = load(*given)
            warning = _scores_other(config, *given)
            if warning and os.environ.get("RANK", "0") == "0":
                log.warning(warning)
            sys.exit(recipe_main(config))

    return main


def _scores_other(config: Config, name: str, overrides: Sequence[str]) -> str | None:
    """Return a warning if evaluation scores other data than the command line suggests."""
    typed = {override.split("=")[0].split(".")[0] for override in overrides}
    if config.eval_split == "test" and inherits_eval_dataset(name, overrides):
        return (
            "dataset was changed but eval_dataset was not: evaluation scores other data than "
            "the run trains on; set eval_dataset, or eval_dataset=null"
        )
    is_typed_alone = "eval_dataset" in typed and "eval_split" not in typed
    if config.eval_split == "validation" and is_typed_alone and config.eval_dataset:
        return (
            "eval_dataset was set but eval_split is validation: evaluation scores held-out pairs "
            "of dataset; set eval_split=test"
        )
    return None


def _program() -> str:
    """Return the name of the program: of its module if torchrun ran ``python -m NAME``."""
    name = Path(sys.argv[0]).name
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.parent if name == "__main__.py" and spec else name
