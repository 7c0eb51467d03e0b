"""Processes of a grid, which end with it."""

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

_PATIENCE = 30.0  # seconds for the processes of a killed grid to end


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], held: int
) -> subprocess.Popen:
    """Start ``tune`` with its output added to ``log``, in its own group.

    On Linux the process is told when the grid dies, however it dies: ``PR_SET_PDEATHSIG``
    sends it SIGTERM, upon which a run saves and ends. ``held`` is the descriptor of the lock.
    """
    parent = os.getpid()

    def end_with_parent() -> None:
        set_parent_death_signal(signal.SIGTERM)
        if os.getppid() != parent:  # it died before that
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
    """The ``tune`` of this Python."""
    return [str(Path(sys.executable).parent / "tune")]


def stop(processes: Sequence[subprocess.Popen], patience: float = _PATIENCE) -> None:
    """End processes, and those that have not ended within ``patience`` seconds by force."""
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
    """The last lines of a log, progress bars left out."""
    text = log.read_text(errors="replace")
    kept = [line.rpartition("\r")[2] for line in text.splitlines() if line.strip()]
    kept = [line for line in kept if not re.match(r"\s*\d*\|?.*\d+%\|", line)]
    return printable("\n".join(f"    {line}" for line in kept[-lines:]))
