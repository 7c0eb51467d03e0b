"""Reports the state of each cell of an experiment, and cancels its Slurm jobs."""

from collections.abc import Iterator
from pathlib import Path

from erjepa.checkpoints.lock import holder_of, is_locked
from erjepa.studies.experiment import read_record
from erjepa.studies.grid.cells import cells
from erjepa.studies.grid.output import CELLS, LOCKS, LOG, results_of_cells
from erjepa.studies.grid.running import failure_of
from erjepa.studies.grid.slurm import jobs_of
from erjepa.studies.grid.slurm_queue import cancel, queue


def status(output_dir: Path) -> Iterator[str]:
    """Yield a line ``CELL: STATE`` for each cell: waiting, running, done, stopped or failed.

    Raises:
        FileNotFoundError: if the folder holds no experiment.
    """
    all_cells = cells(read_record(output_dir).config)
    results = results_of_cells(output_dir, all_cells)
    jobs = jobs_of(output_dir)
    queued = queue(jobs.values())
    for cell in all_cells:
        name = cell.name
        job = jobs.get(name)
        now = queued.get(job or "")
        log, lock = output_dir / CELLS / name / LOG, output_dir / LOCKS / name
        holder = holder_of(lock)
        runs = now is not None and not now.waits
        if name in results:
            state = f"done, {cell.at_end(results[name])}"
        elif holder is not None and (runs or is_locked(lock)):
            who = f"job {job}" if runs else f"process {holder.pid}"
            state = f"running on {holder.host}, {who}, since {holder.since}; {log}"
        elif now is not None:
            state = f"waiting, job {job}: {'starting' if runs else now.reason}"
        elif cell.same_as is not None:
            state = f"waiting for {cell.same_as}, which it is equal to"
        elif not log.exists():
            state = "waiting" if job is None else f"stopped, job {job} never started"
        elif failure := failure_of(log):
            state = f"failed: {failure}"
        else:
            state = f"stopped; run again to resume; {log}"
        yield f"{name}: {state}"


def cancel_jobs(output_dir: Path) -> int:
    """Cancel the Slurm jobs of an experiment; return the number of those not already ending.

    Raises:
        FileNotFoundError: if the folder holds no experiment.
    """
    read_record(output_dir)
    alive = queue(jobs_of(output_dir).values())
    cancel(alive)
    return sum(not job.is_ending for job in alive.values())
