"""Queries and cancels Slurm jobs with ``squeue`` and ``scancel``."""

import subprocess
from collections.abc import Collection
from typing import Annotated, NamedTuple

from pydantic import Field

# A number, or ``ARRAY_TASK`` for a task of a job array.
JobId = Annotated[str, Field(pattern=r"^\d+(_\d+)?$")]


class Job(NamedTuple):
    """A waiting or running job: its state, and the reason why it waits."""

    state: str
    reason: str

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


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
