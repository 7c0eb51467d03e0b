"""Runs the cells of an experiment as Slurm jobs, with submitit.

Cells without dependencies form a job array; every other cell is a job that starts when the cells
it depends on have ended. A task that is preempted or reaches its time limit saves a checkpoint
and is requeued. Submitting a grid again resumes it, and skips cells that are already queued.

Each task writes the results of its cell into the cell's own folder. ``results.jsonl`` is
assembled from those files, in the order of cells.
"""

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import Popen
from types import FrameType
from typing import TYPE_CHECKING, Any

from erjepa.checkpoints.lock import FolderLock, is_locked
from erjepa.studies.experiment import Count, Experiment, read_record
from erjepa.studies.grid import processes
from erjepa.studies.grid.attempts import ATTEMPTS, Claim
from erjepa.studies.grid.cells import Cell, cells
from erjepa.studies.grid.output import CELLS, LOG, record_experiment
from erjepa.studies.grid.slurm_queue import JobId, cancel, queue
from erjepa.studies.grid.stages import results_of_equal, stages, tidy
from erjepa.studies.names import slug
from erjepa.studies.results import Result, read_results, read_rows, whole_cells
from erjepa.utils.checked import checked, reject_unknown
from erjepa.utils.escape import counted
from erjepa.utils.files import RESULTS, write_whole
from erjepa.utils.jsonl import parse_json, to_jsonl

if TYPE_CHECKING:
    from submitit import SlurmExecutor
    from submitit.helpers import DelayedSubmission

SLURM = "slurm"
_JOBS = "jobs.json"  # the newest job of each submitted cell
_STOPS = (signal.SIGTERM, signal.SIGUSR2)  # from scancel and preemption; from submitit
_TIMEOUTS = 1000  # times that submitit may requeue a job, which then resumes
_TO_QUEUE_AGAIN = 20  # seconds of signal_delay_s for requeuing; the rest is for saving
_POLL = 0.2  # seconds


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
    lock = FolderLock(output_dir / SLURM, "submission")
    try:
        if is_locked(output_dir):
            raise BlockingIOError(
                f"a grid of launcher=local is running on {output_dir}; end it first"
            )
        record_experiment(output_dir, experiment)
        gather_results(output_dir, experiment)
        finished = whole_cells(read_results(output_dir))
        submitted = jobs_of(output_dir)
        alive = queue(submitted.values())
        queued = {cell: job for cell, job in submitted.items() if job in alive}
        left_out = finished | queued.keys()
        found = cells(experiment)
        waiting = [
            cell for cell in found if cell.name not in left_out and not cell.same_as
        ]
        count = f"{counted(len(found), 'cell')}, {len(finished)} finished"
        print(f"{count}, {len(left_out - finished)} queued before", flush=True)
        if waiting:
            _submit(executor, experiment, output_dir, waiting, submitted, queued)
        return [cell.name for cell in waiting]
    finally:
        lock.release()


def jobs_of(output_dir: Path) -> dict[str, str]:
    """Return the newest job id of each submitted cell: a number or ``ARRAY_TASK``."""
    path = output_dir / SLURM / _JOBS
    if not path.exists():
        return {}
    jobs = parse_json(path.read_bytes(), str(path))
    return checked(dict[str, JobId], jobs, str(path))


def gather_results(output_dir: Path, experiment: Experiment) -> None:
    """Assemble ``results.jsonl`` from the results files of the cells, in the order of cells.

    Several tasks may do so at the same time. Each reads the files again after writing, until
    nothing changes, so the last writer has read the results of all.
    """
    path, found = output_dir / RESULTS, cells(experiment)
    names = [cell.name for cell in found]
    while True:
        by_cell: dict[str, list[dict[str, Any]]] = {}
        for row in read_rows(path):
            by_cell.setdefault(row["cell"], []).append(row)
        for name in names:
            own = output_dir / CELLS / name / RESULTS
            if own.exists():
                by_cell[name] = read_rows(own)
        for cell in found:
            rows = by_cell.get(cell.same_as or "", ())
            if len(by_cell.get(cell.name, ())) < len(rows):
                lines = [checked(Result, row, str(path)) for row in rows]
                by_cell[cell.name] = list(map(asdict, results_of_equal(cell, lines)))
        order = [*names, *(name for name in by_cell if name not in names)]
        text = to_jsonl(row for name in order for row in by_cell.get(name, ()))
        if text == (path.read_text() if path.exists() else ""):
            return
        write_whole(path, text, f".{socket.gethostname()}.{os.getpid()}")


class CellTask:
    """Runs one cell as a Slurm task, for submitit; ``output_dir`` must be on a shared drive."""

    def __init__(self, output_dir: Path, cell: str) -> None:
        self._output_dir = output_dir
        self._cell = cell

    def __call__(self) -> None:
        """Train and score the cell, or resume it; an exception fails the job."""
        to_queue_again = signal.getsignal(signal.SIGUSR2)  # submitit's handler
        try:
            with _stopped_by_signals() as received:
                self._run()
        except _Stop:
            if signal.SIGUSR2 in received and callable(to_queue_again):
                to_queue_again(signal.SIGUSR2, None)
            # Wait for Slurm to end the job: it requeues a preempted job only if the job has
            # not exited by itself.
            while True:
                signal.pause()

    def checkpoint(self) -> "DelayedSubmission":
        """Return the task of the requeued job; called by submitit."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(CellTask(self._output_dir, self._cell))

    def _run(self) -> None:
        output_dir = self._output_dir
        experiment = read_record(output_dir).config
        (cell,) = (c for c in cells(experiment) if c.name == self._cell)
        gather_results(output_dir, experiment)
        results = read_results(output_dir)
        if cell.name in whole_cells(results):
            return
        claim = Claim(output_dir, cell.name, _own_job())
        failure = None
        try:
            # Processes left by a killed task still hold this lock, so they must end first.
            lock = FolderLock(output_dir / ATTEMPTS / cell.name, "cell", inherited=True)
            if lacking := sorted(cell.needs - whole_cells(results)):
                raise RuntimeError(cell.lacks(lacking[0]))
            patience = _limits(experiment).signal_delay_s - _TO_QUEUE_AGAIN
            for process in self._work(experiment, cell, results, lock.fileno()):
                try:
                    while process.poll() is None:
                        time.sleep(_POLL)
                finally:
                    processes.stop([process], max(patience, 1))
        except Exception as error:
            failure = str(error)
            raise
        finally:
            claim.end(failure)

    def _work(
        self, experiment: Experiment, cell: Cell, before: Sequence[Result], held: int
    ) -> Iterator[Popen]:
        output_dir, folder = self._output_dir, self._output_dir / CELLS / cell.name
        with _own_caches() as caches:
            environment = {**caches, "OMP_NUM_THREADS": _threads(experiment)}

            def start(what: str, command: list[str]) -> Popen:
                print(f"{cell.name}: {what}", flush=True)
                return processes.start(command, folder / LOG, environment, held)

            results = yield from stages(experiment, output_dir, cell, before, start)
        write_whole(folder / RESULTS, to_jsonl(map(asdict, results)))
        gather_results(output_dir, experiment)
        tidy(output_dir, cell, results)


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
    own = experiment.slurm.get("dependency")
    equal = {cell.name: cell.same_as or cell.name for cell in cells(experiment)}
    try:
        first = [cell for cell in waiting if not cell.needs]
        tasks = [CellTask(output_dir, cell.name) for cell in first]
        array = executor.submit_array(tasks) if tasks else []
        jobs |= {cell.name: job.job_id for cell, job in zip(first, array, strict=True)}
        for cell in waiting:
            if cell.needs:
                there = {**queued, **jobs}
                needs = {equal[name] for name in cell.needs}
                sources = sorted(there[name] for name in needs & there.keys())
                # afterany, not afterok: if a needed cell fails, this one starts, fails and
                # reports the reason.
                after = ":".join(["afterany", *sources]) if sources else None
                dependency = ",".join(filter(None, (own, after))) or None
                executor.update_parameters(dependency=dependency)
                job = executor.submit(CellTask(output_dir, cell.name))
                jobs[cell.name] = job.job_id
        text = json.dumps({**submitted, **jobs}, indent=2) + "\n"
        write_whole(output_dir / SLURM / _JOBS, text)
    except BaseException as error:
        cancel(set(jobs.values()))
        if isinstance(error, FailedJobError):
            said = (str(error).strip() or "sbatch failed").splitlines()[-1]
            raise RuntimeError(f"{said}. Nothing was submitted.") from None
        raise


class _Stop(BaseException):
    """Raised when the task receives a signal to save and stop."""


@contextmanager
def _stopped_by_signals() -> Iterator[list[int]]:
    """Raise ``_Stop`` at the first stop signal; yield the list of received signals."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            raise _Stop

    before = {number: signal.signal(number, stop) for number in _STOPS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _own_caches() -> Iterator[dict[str, str]]:
    """Yield environment variables for compiler caches of this task's own, on its node."""
    with tempfile.TemporaryDirectory(
        prefix="erjepa_", ignore_cleanup_errors=True
    ) as path:
        yield {
            "TORCHINDUCTOR_CACHE_DIR": f"{path}/inductor",
            "TRITON_CACHE_DIR": f"{path}/triton",
        }


def _threads(experiment: Experiment) -> str:
    """Return the threads of each rank: OMP_NUM_THREADS if set, else a share of the cores."""
    cores = len(os.sched_getaffinity(0))
    cores = int(os.environ.get("SLURM_CPUS_PER_TASK", cores))
    threads = max(1, cores // experiment.nproc_per_node)
    return os.environ.get("OMP_NUM_THREADS", str(threads))


def _own_job() -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array is None:
        return os.environ["SLURM_JOB_ID"]
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
