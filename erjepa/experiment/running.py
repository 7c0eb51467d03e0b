"""Runs the cells of an experiment: one by one, or side by side on several devices.

A cell is trained by ``tune run erjepa_recipe``, then scored by ``tune run erjepa_eval``, and
counts as finished once its lines are in ``results.jsonl``. A grid that was killed goes on:
finished cells are skipped, the others resume from their checkpoints, and predictions that are
there are not made again. A cell that fails leaves the others alone; the grid says so, and
tries it again only when it is started again.

Of a finished cell, what only resuming needs is removed: recipe state, and checkpoints that are
not scored.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.lock import FolderLock
from erjepa.experiment import processes
from erjepa.experiment.cells import (
    Cell,
    budgets_of,
    cells,
    checkpoints_to_score,
    evaluation_command,
    scored_as,
    training_command,
)
from erjepa.experiment.config import Experiment
from erjepa.experiment.results import CELLS, begin, result_of, scores_dir
from erjepa.utils.results import add_results, read_results, whole_cells

_POLL = 0.2  # seconds


class Job(NamedTuple):
    """A process that a cell needs next: what it does, and the command."""

    what: str
    command: list[str]


def run_experiment(experiment: Experiment) -> list[str]:
    """Run every cell that is not finished.

    Args:
        experiment (Experiment): what to run.

    Returns:
        list[str]: names of the cells that failed.

    Raises:
        BlockingIOError: if another grid is running on the same output_dir.
        ValueError: if the output_dir holds another experiment.
    """
    if sys.platform != "linux":
        raise RuntimeError(
            "grids of runs need Linux, whose kernel ends the runs of a grid that is killed. "
            "`python -m erjepa.experiment show NAME` prints the commands, to run one by one"
        )
    output_dir = Path(experiment.output_dir).absolute()
    # The processes of a grid hold the lock too: one that is started over waits for them.
    lock = FolderLock(output_dir, "grid", inherited=True)
    try:
        begin(output_dir, experiment)
        return _Grid(experiment, output_dir, lock.fileno()).run()
    finally:
        lock.release()


class _Grid:
    """Cells that wait, run and have ended, and the devices that are free."""

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
        """Run what waits; names of the cells that failed."""
        skipped = len(self._all) - len(self._waiting)
        print(f"{len(self._all)} cells, {skipped} of them finished", flush=True)
        try:
            while self._waiting or self._running:
                self._start_what_can()
                time.sleep(_POLL)
                for run in list(self._running):
                    code = run.process.poll() if run.process else None
                    if code is not None:
                        self._go_on(run, code)
        finally:
            processes.stop([run.process for run in self._running if run.process])
        return self._failed

    def _start_what_can(self) -> None:
        for cell in list(self._waiting):
            if not self._free:
                return
            if lacking := sorted(cell.needs.intersection(self._failed)):
                self._waiting.remove(cell)
                self._failed.append(cell.name)
                what = "tokens" if cell.tokens_of in lacking else "weights"
                self._say(cell, f"failed: it needs the {what} of {lacking[0]}")
            elif cell.needs <= self._finished:
                self._waiting.remove(cell)
                run = _Run(cell, self._jobs(cell), self._free.pop(0))
                self._running.append(run)
                self._next_job(run)

    def _go_on(self, run: "_Run", code: int) -> None:
        if code != 0:
            log = self._folder(run.cell) / "run.log"
            last = processes.tail(log)
            self._end(run, f"failed with exit code {code}; {log} ends with\n{last}")
        else:
            self._next_job(run)

    def _next_job(self, run: "_Run") -> None:
        try:
            job = next(run.jobs)
        except StopIteration:
            self._end(run, None)
        except RuntimeError as error:
            self._end(run, f"failed: {error}")
        else:
            self._say(run.cell, job.what)
            log = self._folder(run.cell) / "run.log"
            run.process = processes.start(job.command, log, run.environment, self._held)

    def _end(self, run: "_Run", failure: str | None) -> None:
        self._running.remove(run)
        self._free.append(run.environment)
        if failure is None:
            self._finished.add(run.cell.name)
            self._seconds.append(time.monotonic() - run.start)
            self._say(run.cell, self._outcome(run))
        else:
            self._failed.append(run.cell.name)
            self._say(run.cell, failure)

    def _jobs(self, cell: Cell) -> Iterator[Job]:
        """What a cell does, a process at a time."""
        experiment, folder = self._experiment, self._folder(cell)
        if folder.exists() and not checkpoint.resumable_checkpoints(folder):
            shutil.rmtree(folder)  # killed before there was anything to go on from
        tokens, paths = self._tokens(cell), list[Path]()
        if cell.datasets:
            yield Job("training", training_command(experiment, cell, folder, tokens))
            paths = checkpoints_to_score(experiment, folder)
            if experiment.match == "flops" and tokens is None:
                _require_last_budget(budgets_of(experiment, cell), paths)
        names = ", ".join(path.name for path in paths) or "the base model"
        for scored in scored_as(experiment, cell):
            what = f"scoring {names}" + experiment.continual * f" on {scored.dataset}"
            scores = scores_dir(folder, cell, scored.dataset)
            yield Job(what, evaluation_command(experiment, scored, scores, paths))
        overrides = dict(cell.overrides)
        if tokens is not None:
            overrides["stop.tokens"] = tokens
        results = [
            result_of(
                self._output_dir,
                cell,
                overrides,
                path,
                experiment.score_on,
                scored=scored if experiment.continual else None,
            )
            for path in paths or [folder / "base"]
            for scored in scored_as(experiment, cell)
        ]
        count = len(results)
        add_results(self._output_dir, [replace(r, of=count) for r in results])
        _tidy(folder, keep=paths)

    def _tokens(self, cell: Cell) -> int | None:
        """Tokens that the cell it depends on had taken at its end."""
        return max(
            (
                result.total_tokens
                for result in read_results(self._output_dir)
                if result.cell == cell.tokens_of
            ),
            default=None,
        )

    def _folder(self, cell: Cell) -> Path:
        return self._output_dir / CELLS / cell.name

    def _say(self, cell: Cell, what: str) -> None:
        number, width = self._all.index(cell) + 1, len(str(len(self._all)))
        print(f"[{number:{width}}/{len(self._all)}] {cell.name}: {what}", flush=True)

    def _outcome(self, run: "_Run") -> str:
        accuracy = [
            result.accuracy
            for result in read_results(self._output_dir)
            if (result.cell, result.dataset) == (run.cell.name, run.cell.dataset)
        ][-1]
        left = len(self._waiting) + len(self._running)
        ended = f"accuracy {accuracy:.1%} at the end, after {self._seconds[-1]:.0f} s"
        mean = sum(self._seconds) / len(self._seconds)
        minutes = mean * left / self._slots / 60
        return f"{ended}; {left} cells left, about {minutes:.0f} min" if left else ended


class _Run:
    """A cell that is running."""

    def __init__(
        self, cell: Cell, jobs: Iterator[Job], environment: dict[str, str]
    ) -> None:
        self.cell = cell
        self.jobs = jobs
        self.environment = environment
        self.process: Popen | None = None
        self.start = time.monotonic()


def environments(experiment: Experiment) -> list[dict[str, str]]:
    """Variables for each of the runs that go on side by side: its devices and threads."""
    n, devices = experiment.nproc_per_node, experiment.devices
    groups: list[Sequence[int] | None] = [None]
    if devices is not None:
        groups = [devices[i : i + n] for i in range(0, len(devices), n)]
    threads = max(1, (os.cpu_count() or 1) // (n * len(groups)))
    found = []
    for group in groups:
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
        if group is not None:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, group))
        found.append(variables)
    return found


def _require_last_budget(budgets: Sequence[float], paths: list[Path]) -> None:
    progress = checkpoint.load_progress(paths[-1])
    if budgets and progress.get("budget") != budgets[-1]:
        raise RuntimeError(
            f"its epochs ended at {progress['total_flops']:.3g} FLOPs, before the last "
            f"budget of {budgets[-1]:.3g}; raise epochs"
        )


def _tidy(folder: Path, keep: list[Path]) -> None:
    for path in checkpoint.checkpoints(folder):
        if path in keep:
            (path / checkpoint.RECIPE_STATE).unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
