"""Argument parsing and error messages that all commands share.

A user error is one that a ``raise`` statement of this project raises, or one of torchtune, tiktoken
or torch's optimizers, which configs can reach: its message is written for people. Errors of the
operating system about a file and missing optional packages are user errors too. The command
prints such an error as one message, the last on the screen, and exits with code 2. Errors from
bugs, torch or the user's own components keep their traceback; ``--traceback`` shows it for any
error.

All ranks of a run raise the same error. Rank 0 prints it; the others wait for the launcher to
end them, and print it if they are still alive. torchrun ends with a table of failed ranks; there
the message is passed to the launcher, which prints it at the end of the table.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dis import opmap
from typing import Any, NoReturn

from erjepa.utils.escape import printable

_FOR_USERS = (
    *("erjepa", "erjepa_recipe", "erjepa_eval"),
    *("torchtune", "tiktoken", "torch.optim"),
)
_KINDS = (ValueError, OSError, RuntimeError, ImportError)
# Optional packages, and the extra that installs each.
_EXTRAS = {
    **dict.fromkeys(("matplotlib", "scipy", "seaborn"), "experiments"),
    **dict.fromkeys(("tensorboard", "wandb"), "loggers"),
    "gguf": "smollm2",
    "submitit": "slurm",
}
# Seconds in which the launcher should end this rank, once rank 0 has printed the error; fewer than
# the others wait for a silent one.
_PATIENCE = 5.0


class CommandLine(argparse.ArgumentParser):
    """Argument parser that reports a user error as one message."""

    def __init__(self, **settings: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(**settings, formatter_class=formatter, allow_abbrev=False)
        # Without a default, which a subcommand's parser would set again.
        self.add_argument(
            "--traceback",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show where in the code an error comes from",
        )

    def add_overrides(self) -> None:
        """Accept values for the keys of a config, as the list ``overrides``."""
        self.add_argument(
            "overrides",
            nargs="*",
            default=[],  # without, argparse lists them among the required arguments
            metavar="key=value",
            help="any key; ~key removes it",
        )

    def add_set_option(self, help: str) -> None:
        """Accept ``--set key=value``, several times, as the list ``overrides``."""
        self.add_argument(
            "--set",
            dest="overrides",
            metavar="key=value",
            action="append",
            default=[],
            help=help,
        )

    @contextlib.contextmanager
    def errors(self, arguments: argparse.Namespace) -> Iterator[None]:
        """Report user errors of the block, as the module's docstring describes, and exit. Ctrl-C
        exits with 130.
        """
        try:
            yield
        except KeyboardInterrupt:
            if "traceback" in arguments:
                raise
            sys.exit(128 + signal.SIGINT)
        except Exception as error:
            if "traceback" in arguments or not is_users(error):
                raise
            text = str(error)
            if isinstance(error, OSError) and error.filename is not None:
                text = f"{error.filename}: {error.strerror}"
            if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
                text += f": pip install 'erjepa[{_EXTRAS[error.name]}]'"
            leave(f"{self.prog}: error: {text}")

    def error(self, message: str) -> NoReturn:
        """Report invalid arguments; called by argparse."""
        leave(f"{self.format_usage()}{self.prog}: error: {message}")


def is_users(error: BaseException) -> bool:
    """Return whether an error is a user error, as the module's docstring defines it."""
    if isinstance(error, ModuleNotFoundError):
        return error.name in _EXTRAS
    if not isinstance(error, _KINDS):
        return False
    if isinstance(error, OSError) and error.filename is not None:
        return True
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    package = trace.tb_frame.f_globals.get("__package__") or ""
    instruction = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    return instruction == opmap["RAISE_VARARGS"] and any(
        package == name or package.startswith(f"{name}.") for name in _FOR_USERS
    )


def leave(text: str, code: int = 2) -> NoReturn:
    """Print a message once for all ranks, which call this together, and exit with ``code``."""
    text = printable(text)
    if os.environ.get("RANK", "0") != "0":
        # The launcher must not list this rank as failed when it ends it.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        time.sleep(_PATIENCE)
    sys.stdout.flush()
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        # The format of torch's ErrorHandler.record_exception, with the message as traceback.
        about = {"py_callstack": text, "timestamp": str(int(time.time()))}
        with open(file, "w", encoding="utf-8") as record:
            json.dump({"message": {"message": text, "extraInfo": about}}, record)
    else:
        print(text, file=sys.stderr, flush=True)
    sys.exit(code)
