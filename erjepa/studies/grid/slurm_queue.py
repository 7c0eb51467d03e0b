"""Queries and cancels Slurm jobs with ``squeue`` and ``scancel``."""

import subprocess
import time
from collections.abc import Collection
from typing import Annotated, NamedTuple

from pydantic import Field

# A number, or ``ARRAY_TASK`` for a task of a job array.
JobId = Annotated[str, Field(pattern=r"^\d+(_\d+)?$")]
_POLL = 2.0  # seconds


class Job(NamedTuple):
    """A job that has not ended: its state, and the reason why it waits."""

    state: str
    reason: str

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")

    @property
    def is_ending(self) -> bool:
        """Whether its processes are being ended; Slurm may then queue it again."""
        return self.state == "COMPLETING"


def queue(jobs: Collection[str]) -> dict[str, Job]:
    """Return those of ``jobs`` that have not ended, by id.

    Raises:
        RuntimeError: if ``squeue`` fails.
    """
    if not jobs:
        return {}
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}, key=int))
    form = "%i|%T|%r"
    answer = _call("squeue", "--array", "--noheader", "--format", form, "--jobs", ids)
    if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
        raise RuntimeError(f"squeue does not answer: {answer.stderr.strip()}")
    rows = [line.split("|") for line in answer.stdout.splitlines()]
    return {job: Job(*rest) for job, *rest in rows if job in jobs}


def settled_queue(jobs: Collection[str]) -> dict[str, Job]:
    """Return :func:`queue` once none of ``jobs`` is ending, after up to a minute in most cases."""
    alive = queue(jobs)
    if any(job.is_ending for job in alive.values()):
        print("waiting for Slurm to end tasks", flush=True)
    while any(job.is_ending for job in alive.values()):
        time.sleep(_POLL)
        alive = queue(jobs)
    return alive


def cancel(jobs: Collection[str]) -> None:
    """Cancel waiting and running jobs; jobs that have ended are ignored.

    Raises:
        RuntimeError: if ``scancel`` fails.
    """
    if jobs:
        answer = _call("scancel", "--quiet", *sorted(jobs))
        if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
            raise RuntimeError(f"scancel failed: {answer.stderr.strip()}")


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(
            f"there is no {command[0]} here; use a machine that submits to Slurm"
        ) from None
