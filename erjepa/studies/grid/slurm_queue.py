"""What Slurm says of its jobs, by ``squeue``, and ``scancel``."""

import subprocess
from collections.abc import Collection
from typing import Annotated, NamedTuple

from pydantic import Field

# Of a task of an array ``ARRAY_TASK``.
JobId = Annotated[str, Field(pattern=r"^\d+(_\d+)?$")]


class Job(NamedTuple):
    """A job that waits or runs: its state, its node or ``""``, and why it waits."""

    state: str
    node: str
    reason: str

    @property
    def waits(self) -> bool:
        """Whether none of it runs."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


def queue(jobs: Collection[str]) -> dict[str, Job]:
    """Those of ``jobs``, by id, that have not ended.

    Raises:
        RuntimeError: if Slurm does not answer.
    """
    if not jobs:
        return {}
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}, key=int))
    form = "%i|%T|%N|%r"
    answer = _call("squeue", "--array", "--noheader", "--format", form, "--jobs", ids)
    if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
        raise RuntimeError(f"squeue does not answer: {answer.stderr.strip()}")
    rows = [line.split("|") for line in answer.stdout.splitlines()]
    return {job: Job(*rest) for job, *rest in rows if job in jobs}


def cancel(jobs: Collection[str]) -> None:
    """End jobs, those that wait and those that run; of ended ones nothing is said.

    Raises:
        RuntimeError: if Slurm does not answer.
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
