"""Runs the cells of an experiment on this machine: one by one, or in parallel on several devices.

A cell is trained by ``tune run erjepa_recipe``, scored by ``tune run erjepa_eval``, and finished
once its lines are in ``results.jsonl``. A killed grid can be started again: finished cells are
skipped, others resume from their checkpoints, and existing predictions are reused. If a cell
fails, the grid reports it and continues with the others; the cell is retried when the grid is
started again.

When a cell is finished, its recipe state and the checkpoints that are not scored are removed.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from erjepa.checkpoints.lock import FolderLock
from erjepa.studies.experiment import Experiment
from erjepa.studies.grid import processes
from erjepa.studies.grid.attempts import Claim
from erjepa.studies.grid.cells import Cell, cells
from erjepa.studies.grid.output import CELLS, LOG, record_experiment
from erjepa.studies.grid.stages import results_of_equal, stages, tidy
from erjepa.studies.results import Result, add_results, read_results, whole_cells
from erjepa.utils.escape import counted

_POLL = 0.2  # seconds


def run_experiment(experiment: Experiment) -> list[str]:
    """Run every unfinished cell and return the names of those that failed.

    Raises:
        BlockingIOError: if another grid is running on the same output_dir.
        RuntimeError: if the system is not Linux.
        ValueError: if the output_dir holds another experiment.
    """
    if sys.platform != "linux":
        raise RuntimeError(
            "grids of runs need Linux, whose kernel ends the runs of a grid that is killed. "
            "`erjepa experiment show NAME` prints the commands, to run one by one"
        )
    output_dir = Path(experiment.output_dir).absolute()
    # A grid's processes inherit the lock, so a new grid cannot start while any of them runs.
    lock = FolderLock(output_dir, "grid", inherited=True)
    try:
        record_experiment(output_dir, experiment)
        return _Grid(experiment, output_dir, lock.fileno()).run()
    finally:
        lock.release()


class _Grid:
    """Schedules the cells of an experiment on the free devices."""

    def __init__(self, experiment: Experiment, output_dir: Path, held: int) -> None:
        self._experiment = experiment
        self._output_dir = output_dir
        self._held = held
        self._free = environments(experiment)
        self._slots = len(self._free)
        self._all = cells(experiment)
        self._finished = whole_cells(read_results(output_dir))
        self._waiting = [c for c in self._all if c.name not in self._finished]
        self._running: list[_Run] = []
        self._failed: list[str] = []
        self._seconds: list[float] = []

    def run(self) -> list[str]:
        """Run the waiting cells and return the names of those that failed."""
        skipped = len(self._all) - len(self._waiting)
        print(f"{counted(len(self._all), 'cell')}, {skipped} finished", flush=True)
        try:
            while self._waiting or self._running:
                self._start_ready()
                time.sleep(_POLL)
                for run in list(self._running):
                    if run.process and run.process.poll() is not None:
                        self._advance(run)
        finally:
            processes.stop([run.process for run in self._running if run.process])
            for run in self._running:
                run.claim.end()
        return self._failed

    def _start_ready(self) -> None:
        for cell in list(self._waiting):
            if not self._free:
                return
            if lacking := sorted(cell.needs.intersection(self._failed)):
                self._waiting.remove(cell)
                self._failed.append(cell.name)
                self._say(cell, f"failed: {cell.lacks(lacking[0])}")
            elif cell.needs <= self._finished:
                self._waiting.remove(cell)
                before = read_results(self._output_dir)
                if cell.same_as is not None:
                    add_results(self._output_dir, results_of_equal(cell, before))
                    self._finished.add(cell.name)
                    self._say(cell, f"equal to {cell.same_as}")
                    continue
                try:
                    claim = Claim(self._output_dir, cell.name, job=None)
                except OSError as error:
                    self._failed.append(cell.name)
                    self._say(cell, f"failed: {error}")
                    continue
                environment = self._free.pop(0)
                work = self._work(cell, environment, before)
                self._running.append(_Run(cell, work, environment, claim))
                self._advance(self._running[-1])

    def _work(
        self, cell: Cell, environment: dict[str, str], before: Sequence[Result]
    ) -> Iterator[Popen]:
        log = self._output_dir / CELLS / cell.name / LOG

        def start(what: str, command: list[str]) -> Popen:
            self._say(cell, what)
            return processes.start(command, log, environment, self._held)

        results = yield from stages(
            self._experiment, self._output_dir, cell, before, start
        )
        add_results(self._output_dir, results)
        tidy(self._output_dir, cell, results)

    def _advance(self, run: "_Run") -> None:
        try:
            run.process = next(run.work, None)
        except (OSError, RuntimeError, ValueError) as error:
            self._end(run, str(error))
        else:
            if run.process is None:
                self._end(run, None)

    def _end(self, run: "_Run", failure: str | None) -> None:
        self._running.remove(run)
        self._free.append(run.environment)
        run.claim.end(failure)
        if failure is None:
            self._finished.add(run.cell.name)
            self._seconds.append(time.monotonic() - run.start)
            self._say(run.cell, self._outcome(run))
        else:
            self._failed.append(run.cell.name)
            self._say(run.cell, f"failed: {failure}")

    def _say(self, cell: Cell, what: str) -> None:
        number, width = self._all.index(cell) + 1, len(str(len(self._all)))
        print(f"[{number:{width}}/{len(self._all)}] {cell.name}: {what}", flush=True)

    def _outcome(self, run: "_Run") -> str:
        results = read_results(self._output_dir)
        own = run.cell.name, run.cell.dataset
        accuracy = [x.accuracy for x in results if (x.cell, x.dataset) == own][-1]
        left = len(self._waiting) + len(self._running)
        ended = f"accuracy {accuracy:.1%} at the end, after {self._seconds[-1]:.0f} s"
        mean = sum(self._seconds) / len(self._seconds)
        minutes = mean * left / self._slots / 60
        if not left:
            return ended
        return f"{ended}; {counted(left, 'cell')} left, about {minutes:.0f} min"


@dataclass
class _Run:
    cell: Cell
    work: Iterator[Popen]
    environment: dict[str, str]
    claim: Claim
    process: Popen | None = None
    start: float = field(default_factory=time.monotonic)


def environments(experiment: Experiment) -> list[dict[str, str]]:
    """Return the environment variables of each parallel run: its devices and threads."""
    n, devices = experiment.nproc_per_node, experiment.devices
    groups: list[Sequence[int] | None] = [None]
    if devices is not None:
        groups = [devices[i : i + n] for i in range(0, len(devices), n)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else None
    if names and devices and max(devices) >= len(names):
        raise ValueError(
            f"devices={list(devices)}: CUDA_VISIBLE_DEVICES={visible} shows {len(names)}; "
            "they are counted from 0"
        )
    threads = max(1, (os.cpu_count() or 1) // (n * len(groups)))
    found = []
    for group in groups:
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
        if group is not None:
            shown = [names[i] if names else str(i) for i in group]
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(shown)
        found.append(variables)
    return found
