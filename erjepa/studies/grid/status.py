"""Reports the state of each cell of an experiment, and cancels its Slurm jobs."""

from collections.abc import Iterator
from pathlib import Path

from erjepa.studies.experiment import read_record
from erjepa.studies.grid.attempts import is_going, last_attempt
from erjepa.studies.grid.cells import cells
from erjepa.studies.grid.output import CELLS, LOG
from erjepa.studies.grid.slurm import gather_results, jobs_of
from erjepa.studies.grid.slurm_queue import cancel, queue
from erjepa.studies.results import read_results, whole_cells


def status(output_dir: Path) -> Iterator[str]:
    """Yield a line ``CELL: STATE`` for each cell: waiting, running, done, stopped or failed.

    Raises:
        FileNotFoundError: if the folder holds no experiment.
    """
    experiment = read_record(output_dir).config
    jobs = jobs_of(output_dir)
    if jobs:
        gather_results(output_dir, experiment)
    waiting = queue(jobs.values())
    results = read_results(output_dir)
    finished = whole_cells(results)
    accuracy = {result.cell: result.accuracy for result in results}
    for cell in cells(experiment):
        name, job = cell.name, jobs.get(cell.name)
        log = output_dir / CELLS / name / LOG
        attempt = last_attempt(output_dir, name)
        if name in finished:
            state = f"done, accuracy {accuracy[name]:.1%} at the end"
        elif attempt is not None and is_going(output_dir, attempt, waiting):
            who = f"job {attempt.job}" if attempt.job else f"process {attempt.pid}"
            state = f"running on {attempt.host}, {who}, since {attempt.since}; {log}"
        elif job in waiting:
            now = waiting[job]
            state = f"waiting, job {job}: {now.reason if now.waits else 'starting'}"
        elif cell.same_as is not None:
            state = f"waiting for {cell.same_as}, which it is equal to"
        elif attempt is None:
            state = "waiting" if job is None else f"stopped, job {job} never started"
        elif attempt.failure is not None:
            state = f"failed: {attempt.failure.partition(chr(10))[0]}"
        else:
            state = f"stopped; run again to resume; {log}"
        yield f"{name}: {state}"


def cancel_jobs(output_dir: Path) -> int:
    """Cancel the waiting and running Slurm jobs of an experiment and return their number.

    Raises:
        FileNotFoundError: if the folder holds no experiment.
    """
    read_record(output_dir)
    alive = queue(jobs_of(output_dir).values())
    cancel(alive)
    return len(alive)
