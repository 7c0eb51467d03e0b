"""Attempts to run cells: which process runs a cell, on which host, and how the attempt ended.

``attempts/CELL/N.json`` records the Nth attempt at a cell. The file is created with a hard link,
which is atomic on network drives too: if two processes start the same attempt at once, one
succeeds and the other is refused. A killed process does not record its end; whether it still runs
is known from Slurm, or from the lock that a grid on this machine holds.
"""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from erjepa.checkpoints.lock import is_locked
from erjepa.studies.grid.slurm_queue import Job, JobId, queue
from erjepa.utils.checked import checked
from erjepa.utils.files import write_whole
from erjepa.utils.jsonl import parse_json

ATTEMPTS = "attempts"


@dataclass(frozen=True)
class Attempt:
    """One attempt to run a cell: the content of ``N.json``."""

    host: str
    pid: int  # of the grid, or of the Slurm task
    job: JobId | None  # Slurm job; None: run by a local grid, which holds the lock
    since: str
    ended: str | None = None  # None: still running, or killed
    failure: str | None = None  # None: did not fail, or stopped by a signal


def last_attempt(output_dir: Path, cell: str) -> Attempt | None:
    """Return the newest attempt at a cell, or ``None`` if there is none."""
    number = _newest(output_dir / ATTEMPTS / cell)
    return _read(output_dir / ATTEMPTS / cell, number) if number else None


def is_going(output_dir: Path, attempt: Attempt, jobs: Mapping[str, Job]) -> bool:
    """Return whether a cell's newest attempt is running; one that waits to be resumed is not.

    ``jobs`` are the experiment's jobs in the Slurm queue.
    """
    if attempt.ended is not None:
        return False
    if attempt.job is None:
        return is_locked(output_dir)
    return attempt.job in jobs and not jobs[attempt.job].waits


class Claim:
    """Claims a cell for this process by recording a new attempt.

    An earlier attempt by the same ``job`` has ended, as Slurm requeues only ended jobs.

    Raises:
        BlockingIOError: naming the process or job that runs the cell, if one does.
    """

    def __init__(self, output_dir: Path, cell: str, job: str | None) -> None:
        folder = output_dir / ATTEMPTS / cell
        folder.mkdir(parents=True, exist_ok=True)
        number = _newest(folder)
        if number:
            last = _read(folder, number)
            jobs = queue([last.job] if last.job else [])
            if last.job != job and is_going(output_dir, last, jobs):
                raise BlockingIOError(_refusal(cell, last))
        self._path = folder / f"{number + 1}.json"
        self._attempt = Attempt(socket.gethostname(), os.getpid(), job, _now())
        aside = folder / f".{socket.gethostname()}.{os.getpid()}"
        write_whole(aside, _text(self._attempt))
        try:
            os.link(aside, self._path)
        except FileExistsError:
            raise BlockingIOError(_refusal(cell, _read(folder, number + 1))) from None
        finally:
            aside.unlink()

    def end(self, failure: str | None = None) -> None:
        """Record the end of the attempt, and the reason if it failed."""
        ended = replace(self._attempt, ended=_now(), failure=failure)
        write_whole(self._path, _text(ended))


def _newest(folder: Path) -> int:
    numbers = (path.stem for path in folder.glob("*.json"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _read(folder: Path, number: int) -> Attempt:
    path = folder / f"{number}.json"
    return checked(Attempt, parse_json(path.read_bytes(), str(path)), str(path))


def _text(attempt: Attempt) -> str:
    return json.dumps(asdict(attempt), indent=2) + "\n"


def _now() -> str:
    return datetime.now().astimezone().isoformat(" ", "seconds")


def _refusal(cell: str, attempt: Attempt) -> str:
    who = f"job {attempt.job}" if attempt.job else f"process {attempt.pid}"
    return f"{cell} is run by {who} on {attempt.host}, since {attempt.since}"
