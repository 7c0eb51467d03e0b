"""Runs the cells of an experiment on this machine: one by one, or in parallel on several devices.

A killed grid can be started again: finished cells are skipped, the others resume. If a cell fails,
the grid reports it and continues with the others; the cell is retried when the grid is started
again.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from erjepa.checkpoints.lock import FolderLock
from erjepa.studies.experiment import Experiment
from erjepa.studies.grid.cells import Cell, cells
from erjepa.studies.grid.output import gather_results, record_experiment
from erjepa.studies.grid.processes import Runner
from erjepa.studies.grid.running import run_cell
from erjepa.studies.results import Result
from erjepa.utils.escape import counted


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
    with FolderLock(output_dir, "grid"):
        record_experiment(output_dir, experiment)
        return _Grid(experiment, output_dir).run()


class _Grid:
    """Schedules the cells of an experiment on the free devices."""

    def __init__(self, experiment: Experiment, output_dir: Path) -> None:
        self._experiment = experiment
        self._output_dir = output_dir
        self._free = environments(experiment)
        self._slots = len(self._free)
        self._all = cells(experiment)
        self._ended = set(gather_results(output_dir, self._all))
        self._waiting = [
            cell
            for cell in self._all
            if cell.name not in self._ended and not cell.same_as
        ]
        self._running: dict[Future[list[Result]], tuple[Cell, Runner, float]] = {}
        self._failed: list[str] = []
        self._seconds: list[float] = []

    def run(self) -> list[str]:
        """Run the waiting cells and return the names of those that failed."""
        skipped = sum(cell.name in self._ended for cell in self._all)
        print(f"{counted(len(self._all), 'cell')}, {skipped} finished", flush=True)
        stopping: list[bool] = []
        with ThreadPoolExecutor(self._slots) as pool:
            try:
                while self._waiting or self._running:
                    ready = [c for c in self._waiting if c.needs.keys() <= self._ended]
                    for cell in ready[: len(self._free)]:
                        self._waiting.remove(cell)
                        say = partial(self._say, cell)
                        runner = Runner(self._free.pop(0), say, stopping)
                        task = self._experiment, self._output_dir, self._all, cell
                        future = pool.submit(run_cell, *task, runner)
                        self._running[future] = cell, runner, time.monotonic()
                    for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                        self._end(future)
            except (KeyboardInterrupt, SystemExit):
                runs = counted(len(self._running), "run")
                print(f"Stopping {runs}. Run again to resume.", flush=True)
                raise
            finally:
                stopping.append(True)
        return self._failed

    def _end(self, future: Future[list[Result]]) -> None:
        cell, runner, start = self._running.pop(future)
        self._free.append(runner.environment)
        self._ended.add(cell.name)
        equal = [other for other in self._all if other.same_as == cell.name]
        try:
            results = future.result()
        except (OSError, RuntimeError, ValueError) as error:
            self._failed += [cell.name, *(other.name for other in equal)]
            said, of_equal = f"failed: {error}", "failed: it needs the results of"
        else:
            self._seconds.append(time.monotonic() - start)
            said, of_equal = self._outcome(cell, results), "equal to"
        self._say(cell, said)
        for other in equal:
            self._say(other, f"{of_equal} {cell.name}")

    def _say(self, cell: Cell, what: str) -> None:
        number, width = self._all.index(cell) + 1, len(str(len(self._all)))
        line = f"[{number:{width}}/{len(self._all)}] {cell.name}: {what}\n"
        print(line, end="", flush=True)  # in one piece: cells print from their threads

    def _outcome(self, cell: Cell, results: Sequence[Result]) -> str:
        left = len(self._waiting) + len(self._running)
        ended = f"{cell.at_end(results)}, after {self._seconds[-1]:.0f} s"
        mean = sum(self._seconds) / len(self._seconds)
        minutes = mean * left / self._slots / 60
        if not left:
            return ended
        return f"{ended}; {counted(left, 'cell')} left, about {minutes:.0f} min"


def environments(experiment: Experiment) -> list[Mapping[str, str]]:
    """Return the environment variables of each parallel run: its devices and threads.

    Raises:
        ValueError: if ``CUDA_VISIBLE_DEVICES`` shows fewer devices.
    """
    devices, groups = experiment.devices, experiment.device_groups
    ranks = experiment.nproc_per_node * max(1, len(groups))
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    shared = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    if devices is None:
        return [shared]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):  # no GPU is to be used
        return [shared] * len(groups)
    names = visible.split(",") if visible else list(map(str, range(max(devices) + 1)))
    if max(devices) >= len(names):
        raise ValueError(
            f"devices={list(devices)}: CUDA_VISIBLE_DEVICES={visible} shows {len(names)}; "
            "they are counted from 0"
        )
    return [
        {**shared, "CUDA_VISIBLE_DEVICES": ",".join(names[i] for i in group)}
        for group in groups
    ]
