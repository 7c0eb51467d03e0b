"""Runs the processes of a grid, which end when the grid ends."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erjepa.training.run.signals import set_parent_death_signal
from erjepa.utils.escape import printable

_POLL = 0.2  # seconds
# An uncaught exception, or the message of a command: ``erjepa_recipe: error: ...``.
_ERROR = re.compile(
    r"(?:\[rank\d+\]: |\s*traceback : )?((?:\w+: )?[\w.]*(?:[Ee]rror|Exception): .+)"
)
# In the table with which torchrun ends, of the rank that failed first.
_ROOT_CAUSE = re.compile(r"Root Cause.*?\n\s+rank\s+: (\d+)", re.DOTALL)


class Stopped(BaseException):
    """Raised when a process was stopped, or not started, because its grid stops."""


@dataclass(frozen=True)
class Runner:
    """Runs the processes of a cell, one at a time."""

    environment: Mapping[str, str]  # variables to add
    say: Callable[[str], None]  # prints what is being run
    stopping: Sequence[Any]  # empty until the grid stops
    patience: float = 30.0  # seconds between SIGTERM and SIGKILL

    def run(self, command: Sequence[str], log: Path, held: int) -> int:
        """Run a ``tune`` command in its own process group and return its exit code.

        When the thread that called this dies, even by SIGKILL, Linux sends the process SIGTERM
        (``PR_SET_PDEATHSIG``), on which a run saves and ends.

        Args:
            log: file to which the output is appended.
            held: file descriptor of a lock, which the process inherits.

        Raises:
            Stopped: if the grid stops; the process has ended then.
        """
        if self.stopping:
            raise Stopped
        process = self._start(command, log, held)
        try:
            while process.poll() is None:
                if self.stopping:
                    raise Stopped
                time.sleep(_POLL)
        finally:
            self._end(process)
        if process.returncode:
            # Slurm signals all processes of a task, and this one may have ended first.
            time.sleep(_POLL)
            if self.stopping:
                raise Stopped
        return process.returncode

    def _start(
        self, command: Sequence[str], log: Path, held: int
    ) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def end_with_parent() -> None:
            set_parent_death_signal(signal.SIGTERM)
            # Slurm may send a task's warning, SIGUSR2, to its children too; the task ends them.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            if os.getppid() != parent:  # the grid died before the signal was set
                os._exit(1)

        with log.open("a") as output:
            output.write(f"$ {shlex.join(command)}\n")
            output.flush()
            return subprocess.Popen(
                [*tune(), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
                pass_fds=[held],
                preexec_fn=end_with_parent,
            )

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Terminate a process; kill its group if it still runs after :attr:`patience`."""
        process.terminate()
        try:
            process.wait(timeout=self.patience)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def tune() -> list[str]:
    """Return the command ``tune`` of this Python environment."""
    return [str(Path(sys.executable).parent / "tune")]


def failure_in(log: Path) -> str:
    """Return the error that the last command in a log reports, or else its last line, and below
    it the last 15 lines, without progress bars.
    """
    text = log.read_text(errors="replace").rpartition("\n$ ")[2]
    lines = [line.rpartition("\r")[2] for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"\s*\d*\|?.*\d+%\|", line)]
    root = _ROOT_CAUSE.search(text)
    of_root = [line for line in lines if root and line.startswith(f"[rank{root[1]}]:")]
    errors = filter(None, map(_ERROR.match, of_root or lines))
    reason = [lines[-1].strip(), *(error[1] for error in errors)][-1]
    end = "\n".join(f"    {line}" for line in lines[-15:])
    return printable(f"{reason}\n{log} ends with\n{end}")
