"""The command ``erjepa``, and its subcommands: one module each, with a function ``main(arguments)``.

Slow imports happen inside the ``main`` of a subcommand, once the arguments are parsed, so that
``--help`` is fast.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from erjepa.utils.command_line import CommandLine

# Module of erjepa.commands, imported on use -> help text.
COMMANDS = {
    "configs": "list, show, copy, check and make configs",
    "doctor": "check a machine and a config before a run",
    "stats": "count the tokens of a config's pairs",
    "generate": "answer prompts with a trained model",
    "memory": "read, create, export or prune the memory of a run",
    "curve": "draw losses, cosines and accuracy of a run",
    "prompts": "write an evaluation's prompts for a serving engine",
    "score": "score answers that were generated anywhere",
    "experiment": "run a grid of methods, datasets and seeds",
    "report": "make tables and figures of an experiment",
    "smollm2": "make the base model SmolLM2-135M-Instruct from a package",
}
_LIST = "\n".join(f"  {name:<12}{what}" for name, what in COMMANDS.items())


def main(arguments: Sequence[str] | None = None) -> int | None:
    """Run a command and return the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
        sys.path.append("")  # modules of the user, as with `python -m`
    parser = CommandLine(
        prog="erjepa",
        description="ER-JEPA for torchtune. `tune run erjepa_recipe` trains, `tune run "
        "erjepa_eval`\nevaluates; everything else is a command here.",
        epilog=f"commands:\n{_LIST}\n\n`erjepa COMMAND --help` says more.",
    )
    parser.add_argument(
        "command", metavar="COMMAND", choices=COMMANDS, help="see below"
    )
    command = parser.parse_args(arguments[:1]).command
    try:
        code = import_module(f"erjepa.commands.{command}").main(arguments[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # such as that of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return None
    return code
