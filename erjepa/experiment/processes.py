"""Processes of a grid, which end with it, and the lock that keeps two grids apart."""

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PATIENCE = 30.0  # seconds for the processes of a killed grid to end


@contextlib.contextmanager
def lock(output_dir: Path) -> Iterator[int]:
    """Hold ``output_dir`` for one grid.

    The processes of the grid hold the lock too, so a grid that is started over waits for
    what a killed one has left.

    Args:
        output_dir (Path): folder of the experiment.

    Yields:
        int: descriptor of the lock.

    Raises:
        BlockingIOError: if another grid holds it.
    """
    with (output_dir / ".lock").open("a+") as file:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                if _lives(file.read()) or time.monotonic() > deadline:
                    raise BlockingIOError(
                        f"another grid is running on {output_dir}; wait for it or "
                        "choose another output_dir"
                    ) from None
                time.sleep(0.1)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], held: int
) -> subprocess.Popen:
    """Start ``tune`` with its output added to ``log``.

    On Linux the process is ended when the grid dies, however it dies: ``PR_SET_PDEATHSIG``
    sends it SIGTERM, upon which a launcher ends its ranks.

    Args:
        command (Sequence[str]): arguments of ``tune``.
        log (Path): file for what it prints.
        environment (Mapping[str, str]): variables to add.
        held (int): descriptor of the lock.

    Returns:
        subprocess.Popen: the process, leader of a group of its own.
    """
    parent = os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def end_with_parent() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before that
                os._exit(1)

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        output.write(f"$ {' '.join(command)}\n")
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


def stop(processes: Sequence[subprocess.Popen]) -> None:
    """End processes, and those that do not end at once by force."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, progress bars left out."""
    text = log.read_text(errors="replace")
    kept = [line.rpartition("\r")[2] for line in text.splitlines() if line.strip()]
    kept = [line for line in kept if not re.match(r"\s*\d*\|?.*\d+%\|", line)]
    return "\n".join(f"    {line}" for line in kept[-lines:])
