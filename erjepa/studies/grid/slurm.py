"""Runs the cells of an experiment as Slurm jobs, with submitit.

Cells without dependencies form a job array; every other cell is a job that starts when the cells
it depends on have ended. A task that is preempted or reaches its time limit saves a checkpoint
and is requeued. Submitting a grid again resumes it, and skips cells that are already queued.
"""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from erjepa.checkpoints.lock import FolderLock, is_locked
from erjepa.studies.experiment import Count, Experiment, read_record
from erjepa.studies.grid.cells import Cell, cells
from erjepa.studies.grid.output import gather_results, record_experiment
from erjepa.studies.grid.processes import Runner, Stopped
from erjepa.studies.grid.running import run_cell
from erjepa.studies.grid.slurm_queue import JobId, cancel, settled_queue
from erjepa.studies.names import slug
from erjepa.utils.checked import checked, read_json, reject_unknown
from erjepa.utils.escape import counted
from erjepa.utils.files import write_whole

if TYPE_CHECKING:
    from submitit import SlurmExecutor
    from submitit.helpers import DelayedSubmission

SLURM = "slurm"
_JOBS = "jobs.json"  # the newest job of each submitted cell
_STOPS = (signal.SIGTERM, signal.SIGUSR2)  # from scancel and preemption; from submitit
_TIMEOUTS = 1000  # times that submitit may requeue a job, which then resumes
_TO_QUEUE_AGAIN = 20  # seconds of signal_delay_s for requeuing; the rest is for saving


def submit(experiment: Experiment) -> list[str]:
    """Submit every cell that is neither finished nor queued, all or none, and return their names.

    Raises:
        BlockingIOError: if a grid with ``launcher: local`` is running on the output_dir.
        RuntimeError: if there is no Slurm, or with Slurm's message if it refuses a job.
        ValueError: if a key of ``slurm`` is unknown, or the output_dir holds another
            experiment.
    """
    output_dir = Path(experiment.output_dir).absolute()
    if shutil.which("sbatch") is None:
        raise RuntimeError(
            "launcher=slurm: there is no sbatch here; use a machine that submits to Slurm"
        )
    executor = _executor(experiment, output_dir)
    with FolderLock(output_dir / SLURM, "submission"):
        if is_locked(output_dir):
            raise BlockingIOError(
                f"a grid of launcher=local is running on {output_dir}; end it first"
            )
        record_experiment(output_dir, experiment)
        submitted = jobs_of(output_dir)
        alive = settled_queue(submitted.values())
        all_cells = cells(experiment)
        # Read after the queue: a task that has left it has written its results.
        finished = gather_results(output_dir, all_cells).keys()
        queued = {cell: job for cell, job in submitted.items() if job in alive}
        left_out = finished | queued.keys()
        waiting = [
            cell for cell in all_cells if cell.name not in left_out and not cell.same_as
        ]
        count = f"{counted(len(all_cells), 'cell')}, {len(finished)} finished"
        print(f"{count}, {len(left_out - finished)} queued before", flush=True)
        if waiting:
            _submit(executor, experiment, output_dir, waiting, submitted, queued)
        return [cell.name for cell in waiting]


def jobs_of(output_dir: Path) -> dict[str, str]:
    """Return the newest job id of each submitted cell: a number or ``ARRAY_TASK``."""
    path = output_dir / SLURM / _JOBS
    return read_json(dict[str, JobId], path) if path.exists() else {}


class CellTask:
    """Runs one cell as a Slurm task, for submitit; ``output_dir`` must be on a shared drive."""

    def __init__(self, output_dir: Path, cell: str) -> None:
        self._output_dir = output_dir
        self._cell = cell

    def __call__(self) -> None:
        """Train and score the cell, or resume it; an exception fails the job."""
        to_queue_again = signal.getsignal(signal.SIGUSR2)  # submitit's handler
        received: list[int] = []
        for one in _STOPS:
            signal.signal(one, lambda number, frame: received.append(number))
        try:
            self._run(received)
        except Stopped:
            if signal.SIGUSR2 in received and callable(to_queue_again):
                to_queue_again(signal.SIGUSR2, None)
            # Wait for Slurm to end the job: it requeues a preempted job only if the job has
            # not exited by itself.
            while True:
                signal.pause()

    def checkpoint(self) -> "DelayedSubmission":
        """Return the task of the requeued job; called by submitit."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _run(self, stopping: Sequence[int]) -> None:
        experiment = read_record(self._output_dir).config
        all_cells = cells(experiment)
        (cell,) = (cell for cell in all_cells if cell.name == self._cell)
        say = partial(print, f"{cell.name}:", flush=True)
        patience = max(_limits(experiment).signal_delay_s - _TO_QUEUE_AGAIN, 1)
        # Compilers cache what they build in a folder of this task, on its node.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as caches:
            environment = {
                "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
                "TRITON_CACHE_DIR": f"{caches}/triton",
                "OMP_NUM_THREADS": _threads(experiment),
            }
            runner = Runner(environment, say, stopping, patience)
            run_cell(experiment, self._output_dir, all_cells, cell, runner)


@dataclass(frozen=True)
class _Limits:
    """Time limit of a task in minutes, and how many seconds before it the task must save."""

    time: Count = 240
    signal_delay_s: Count = 120


def _limits(experiment: Experiment) -> _Limits:
    return checked(_Limits, experiment.slurm, "slurm")


def _executor(experiment: Experiment, output_dir: Path) -> "SlurmExecutor":
    from submitit import SlurmExecutor

    settings = {
        "job_name": f"erjepa-{slug(experiment.name)}",
        **experiment.slurm,
        **asdict(_limits(experiment)),
    }
    known = SlurmExecutor._valid_parameters()
    reject_unknown("slurm.", settings, known)
    more = {"requeue": True, **(settings.get("additional_parameters") or {})}
    (output_dir / SLURM).mkdir(parents=True, exist_ok=True)
    executor = SlurmExecutor(output_dir / SLURM, max_num_timeout=_TIMEOUTS)
    executor.update_parameters(**{**settings, "additional_parameters": more})
    return executor


def _submit(
    executor: "SlurmExecutor",
    experiment: Experiment,
    output_dir: Path,
    waiting: Sequence[Cell],
    submitted: Mapping[str, str],
    queued: Mapping[str, str],
) -> None:
    """Submit the waiting cells, and record the jobs of all cells in ``jobs.json``."""
    from submitit.core.utils import FailedJobError

    jobs: dict[str, str] = {}
    given = experiment.slurm.get("dependency")
    first = [cell for cell in waiting if not cell.needs]
    later = [cell for cell in waiting if cell.needs]
    try:
        tasks = [CellTask(output_dir, cell.name) for cell in first]
        array = executor.submit_array(tasks) if tasks else []
        jobs |= {cell.name: job.job_id for cell, job in zip(first, array, strict=True)}
        for cell in later:
            there = {**queued, **jobs}
            sources = sorted(there[name] for name in cell.needs if name in there)
            # afterany, not afterok: if a needed cell fails, this one starts, fails and
            # reports the reason.
            after = ":".join(["afterany", *sources]) if sources else None
            dependency = ",".join(filter(None, (given, after))) or None
            executor.update_parameters(dependency=dependency)
            job = executor.submit(CellTask(output_dir, cell.name))
            jobs[cell.name] = job.job_id
        text = json.dumps({**submitted, **jobs}, indent=2) + "\n"
        write_whole(output_dir / SLURM / _JOBS, text)
    except BaseException as error:
        cancel(set(jobs.values()))
        if isinstance(error, FailedJobError):
            reason = (str(error).strip() or "sbatch failed").splitlines()[-1]
            raise RuntimeError(f"{reason}. Nothing was submitted.") from None
        raise


def _threads(experiment: Experiment) -> str:
    """Return the threads of each rank: OMP_NUM_THREADS if set, else a share of the cores."""
    cores = len(os.sched_getaffinity(0))
    cores = int(os.environ.get("SLURM_CPUS_PER_TASK", cores))
    threads = max(1, cores // experiment.nproc_per_node)
    return os.environ.get("OMP_NUM_THREADS", str(threads))
