"""Runs a cell: trains it with ``tune run erjepa_recipe``, scores it with ``tune run erjepa_eval``.

A cell is finished once its folder has a file of results. A cell that was killed resumes from its
checkpoints and reuses the predictions that there are. When it is finished, its recipe state and the
checkpoints that are not scored are removed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.lock import FolderLock
from erjepa.studies.experiment import Experiment
from erjepa.studies.grid.cells import (
    Cell,
    budgets_of,
    checkpoints_to_score,
    evaluation_command,
    scored_as,
    training_command,
)
from erjepa.studies.grid.output import (
    CELLS,
    LOCKS,
    LOG,
    gather_results,
    result_of,
    scores_dir,
)
from erjepa.studies.grid.processes import Runner, failure_in
from erjepa.studies.results import Result
from erjepa.utils.files import RESULTS, write_whole
from erjepa.utils.folders import make_folder, remove
from erjepa.utils.jsonl import to_jsonl

_FAILED = "failed: "


def run_cell(
    experiment: Experiment,
    output_dir: Path,
    all_cells: Sequence[Cell],
    cell: Cell,
    runner: Runner,
) -> list[Result]:
    """Run one of all cells, unless it is finished, and return its results.

    The first line of an error, the reason of the failure, becomes the last line of the cell's log.

    Raises:
        BlockingIOError: if another process runs the cell.
        RuntimeError: if a cell that it needs is not finished, a process failed, or the run ended
            before the last budget.
        ValueError: if the folder of the cell was not made by a grid.
        Stopped: if the grid stops.
    """
    folder = output_dir / CELLS / cell.name
    log = folder / LOG
    # The processes inherit the lock: those that a killed grid has left end first.
    with FolderLock(output_dir / LOCKS / cell.name, "process", inherited=True) as lock:
        finished = gather_results(output_dir, all_cells)
        if cell.name in finished:
            return finished[cell.name]

        def run(what: str, command: Sequence[str]) -> None:
            runner.say(what)
            if code := runner.run(command, log, lock.fileno()):
                raise RuntimeError(f"exit code {code}: {failure_in(log)}")

        make_folder(output_dir, folder)
        try:
            results = _train_and_score(experiment, output_dir, cell, finished, run)
        except Exception as error:
            with log.open("a", encoding="utf-8") as text:
                reason, *_ = str(error).splitlines() or [""]
                text.write(f"\n{_FAILED}{reason}\n")
            raise
        write_whole(folder / RESULTS, to_jsonl(map(asdict, results)))
        gather_results(output_dir, all_cells)
        scored = {result.checkpoint for result in results}
        for path in checkpoint.checkpoints(folder):
            kept = path.name in scored
            remove(output_dir, path / checkpoint.RECIPE_STATE if kept else path)
        return results


def failure_of(log: Path) -> str | None:
    """Return why the cell with this log failed, or ``None`` if it was stopped."""
    *_, last = log.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    return last.removeprefix(_FAILED) if last.startswith(_FAILED) else None


def _train_and_score(
    experiment: Experiment,
    output_dir: Path,
    cell: Cell,
    finished: Mapping[str, Sequence[Result]],
    run: Callable[[str, Sequence[str]], None],
) -> list[Result]:
    """Train and score a cell, given the results of finished cells and what runs a command."""
    for needed, what in cell.needs.items():
        if needed not in finished:
            raise RuntimeError(f"it needs the {what} of {needed}")
    folder = output_dir / CELLS / cell.name
    ends = (line.total_tokens for line in finished.get(cell.tokens_of or "", ()))
    tokens = max(ends, default=None)
    after = [output_dir / finished[name][0].run for name in cell.after]
    if cell.budget_factor and not checkpoint.resumable_checkpoints(folder):
        remove(output_dir, folder)  # files of a run killed before its first checkpoint
        make_folder(output_dir, folder)
    paths: list[Path] = []
    if cell.budget_factor:
        run("training", training_command(experiment, cell, folder, tokens, after))
        paths = checkpoints_to_score(experiment, folder)
        _require_end(experiment, cell, tokens, paths[-1])
    names = ", ".join(path.name for path in paths) or "the base model"
    scored_cells = scored_as(experiment, cell)
    for scored in scored_cells:
        what = f"scoring {names}" + experiment.continual * f" on {scored.dataset}"
        scores = scores_dir(folder, cell, scored.dataset)
        run(what, evaluation_command(experiment, scored, scores, paths, after))
    if tokens is not None:
        cell = replace(cell, overrides={**cell.overrides, "stop.tokens": tokens})
    return [
        result_of(experiment, output_dir, cell, scored, path, weights)
        for path in paths or [folder / "base"]
        for weights in experiment.score_weights
        for scored in scored_cells
    ]


def _require_end(
    experiment: Experiment, cell: Cell, tokens: int | None, last: Path
) -> None:
    """Raise RuntimeError if a run's last checkpoint is before the tokens or budget to match."""
    progress, end = checkpoint.load_progress(last), ""
    if tokens is not None:
        if (reached := progress["total_tokens"]) < tokens:
            end = f"{reached} tokens, before the {tokens} that it is to match"
    elif experiment.budgets:
        budget = budgets_of(experiment, cell)[-1]
        if progress.get("budget") != budget:
            flops = progress["total_flops"]
            end = f"{flops:.3g} FLOPs, before the last budget of {budget:.3g}"
    if end:
        raise RuntimeError(f"its epochs ended at {end}; raise epochs")
