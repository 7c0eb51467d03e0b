"""What command lines have in common: their help, and what they say to a user who is wrong.

An error is the user's if a ``raise`` of the project made it, or of torchtune or torch's
optimizers, which configs reach: its text is written for people. So is what the system says of a
file, and so is the want of a package that not every install has. Such an error is one message,
the last on the screen, and the exit code is 2. What a bug, torch or a component of the user's
own raises keeps its traceback; ``--traceback`` shows that of any error.

The ranks of a run find the same errors. Rank 0 speaks; the others leave it the time to, and
speak if they are still there. Under torchrun, which ends with a table of failed ranks, the
message is handed to the launcher, and is what its table ends with.
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

_FOR_USERS = ("erjepa", "erjepa_recipe", "erjepa_eval", "torchtune", "torch.optim")
_KINDS = (ValueError, OSError, RuntimeError, ImportError)
# Packages that not every install has.
_EXTRAS = {
    **dict.fromkeys(("matplotlib", "pandas", "scipy", "seaborn"), "experiments"),
    **dict.fromkeys(("tensorboard", "wandb"), "loggers"),
    "gguf": "smollm2",
    "submitit": "slurm",
}
_PATIENCE = 30.0  # seconds in which a launcher ends the other ranks


class CommandLine(argparse.ArgumentParser):
    """A parser of arguments whose user is told of errors in one message."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings, allow_abbrev=False)
        # Absent unless it is given, so that a subcommand does not take it back.
        self.add_argument(
            "--traceback",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show where in the code an error comes from",
        )

    @contextlib.contextmanager
    def errors(self, arguments: argparse.Namespace) -> Iterator[None]:
        """Say what goes wrong within; see the top of this file.

        Raises:
            SystemExit: with code 2, after a user's error.
        """
        try:
            yield
        except Exception as error:
            if "traceback" in arguments or not is_users(error):
                raise
            text = str(error)
            if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
                text += f": pip install 'erjepa[{_EXTRAS[error.name]}]'"
            _leave(f"{self.prog}: error: {text}")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments; argparse calls it."""
        _leave(f"{self.format_usage()}{self.prog}: error: {message}")


def is_users(error: BaseException) -> bool:
    """Whether an error was raised for the user to read."""
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


def _leave(text: str) -> NoReturn:
    """Say a text once for all ranks, and end this process."""
    text = printable(text)
    if os.environ.get("RANK", "0") != "0":
        # Ended by the launcher, this rank is none of those that failed.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        time.sleep(_PATIENCE)
    sys.stdout.flush()
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        # What torch's ErrorHandler.record_exception writes, the message for the traceback.
        about = {"py_callstack": text, "timestamp": str(int(time.time()))}
        with open(file, "w", encoding="utf-8") as record:
            json.dump({"message": {"message": text, "extraInfo": about}}, record)
    else:
        print(text, file=sys.stderr, flush=True)
    sys.exit(2)
