"""Attempts at cells: who runs a cell, where, and how that ended.

``attempts/CELL/N.json`` is the Nth attempt at a cell. A file is linked into place, which one
process alone can do, on a network drive too. So of two that find the last attempt ended and start
at once, one makes the next and the other is refused. A killed process says no end; whether it is
still there is asked of Slurm, or of the lock that a grid of this machine holds.
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
    """What ``N.json`` holds."""

    host: str
    pid: int  # a grid, or a task of Slurm
    job: JobId | None  # None: a grid of one machine, which holds the lock
    since: str
    ended: str | None = None  # None: it has not, or it was killed
    failure: str | None = None  # None: it did not, or was told to stop


def last_attempt(output_dir: Path, cell: str) -> Attempt | None:
    """The newest attempt at a cell, if there was one."""
    number = _newest(output_dir / ATTEMPTS / cell)
    return _read(output_dir / ATTEMPTS / cell, number) if number else None


def is_going(output_dir: Path, attempt: Attempt, jobs: Mapping[str, Job]) -> bool:
    """Whether the newest attempt at a cell is under way. ``jobs`` is what Slurm has of the
    experiment's jobs; one that waits to resume is not under way.
    """
    if attempt.ended is not None:
        return False
    if attempt.job is None:
        return is_locked(output_dir)
    return attempt.job in jobs and not jobs[attempt.job].waits


class Claim:
    """Holds a cell for this process, as its newest attempt.

    An earlier attempt of the same ``job`` is over: Slurm starts a job again when it has ended.

    Raises:
        BlockingIOError: naming who runs the cell, if another does.
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
        """Let others have the cell; ``failure`` says why it failed, if it did."""
        ended = replace(self._attempt, ended=_now(), failure=failure)
        write_whole(self._path, _text(ended))


def _newest(folder: Path) -> int:
    """Number of the newest attempt; 0: none."""
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
