"""Starts and stops the processes of a grid, which end when the grid ends."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from erjepa.training.run.signals import set_parent_death_signal
from erjepa.utils.escape import printable

_PATIENCE = 30.0  # seconds between SIGTERM and SIGKILL


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], held: int
) -> subprocess.Popen:
    """Start a ``tune`` command in its own process group and append its output to ``log``.

    When the grid dies, even by SIGKILL, Linux sends the process SIGTERM (``PR_SET_PDEATHSIG``), on
    which a run saves and ends. The process inherits ``held``, the file descriptor of the lock.
    """
    parent = os.getpid()

    def end_with_parent() -> None:
        set_parent_death_signal(signal.SIGTERM)
        if os.getppid() != parent:  # the grid died before the signal was set
            os._exit(1)

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        output.write(f"$ {shlex.join(command)}\n")
        output.flush()
        return subprocess.Popen(
            [*tune(), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            pass_fds=[held],
            preexec_fn=end_with_parent,
        )


def tune() -> list[str]:
    """Return the command ``tune`` of this Python environment."""
    return [str(Path(sys.executable).parent / "tune")]


def stop(processes: Sequence[subprocess.Popen], patience: float = _PATIENCE) -> None:
    """Terminate processes; kill the groups of those that still run after ``patience`` seconds."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, without progress bars."""
    text = log.read_text(errors="replace")
    kept = [line.rpartition("\r")[2] for line in text.splitlines() if line.strip()]
    kept = [line for line in kept if not re.match(r"\s*\d*\|?.*\d+%\|", line)]
    return printable("\n".join(f"    {line}" for line in kept[-lines:]))
