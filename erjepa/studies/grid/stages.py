"""The processes of a cell, training and scoring, and the results that are kept."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

from erjepa.checkpoints import checkpoint
from erjepa.studies.experiment import Experiment
from erjepa.studies.grid import processes
from erjepa.studies.grid.cells import (
    Cell,
    budgets_of,
    checkpoints_to_score,
    evaluation_command,
    scored_as,
    training_command,
)
from erjepa.studies.grid.output import CELLS, LOG, result_of, scores_dir
from erjepa.studies.results import Result
from erjepa.utils.folders import make_folder, remove


def stages(
    experiment: Experiment,
    output_dir: Path,
    cell: Cell,
    before: Sequence[Result],
    start: Callable[[str, list[str]], Popen],
) -> Generator[Popen, None, list[Result]]:
    """Start the processes of a cell one at a time; yield each, and continue when it has ended.

    Args:
        before: results of the experiment so far, including those of the cells that it needs.
        start: starts a process, given a description and the command.

    Returns:
        The results of the cell, for ``results.jsonl``.

    Raises:
        RuntimeError: if a process failed, or the run ended before the last budget.
        ValueError: if the folder of the cell was not made by a grid.
    """
    folder = output_dir / CELLS / cell.name
    ends = (result.total_tokens for result in before if result.cell == cell.tokens_of)
    tokens = max(ends, default=None)
    runs = {result.cell: output_dir / result.run for result in before}
    after = [runs[name] for name in cell.after]
    make_folder(output_dir, folder)
    if not checkpoint.resumable_checkpoints(folder):
        remove(output_dir, folder)  # files of a run killed before its first checkpoint
        make_folder(output_dir, folder)
    paths: list[Path] = []
    if cell.datasets:
        command = training_command(experiment, cell, folder, tokens, after)
        yield from _run(start, "training", command, folder)
        paths = checkpoints_to_score(experiment, folder)
        if experiment.match == "flops" and tokens is None:
            _require_last_budget(budgets_of(experiment, cell), paths)
    names = ", ".join(path.name for path in paths) or "the base model"
    for scored in scored_as(experiment, cell):
        what = f"scoring {names}" + experiment.continual * f" on {scored.dataset}"
        scores = scores_dir(folder, cell, scored.dataset)
        command = evaluation_command(experiment, scored, scores, paths, after)
        yield from _run(start, what, command, folder)
    overrides = dict(cell.overrides)
    if tokens is not None:
        overrides["stop.tokens"] = tokens
    results = [
        result_of(experiment, output_dir, cell, overrides, scored, path, weights)
        for path in paths or [folder / "base"]
        for weights in experiment.score_weights
        for scored in scored_as(experiment, cell)
    ]
    return [replace(result, of=len(results)) for result in results]


def _run(
    start: Callable[[str, list[str]], Popen],
    what: str,
    command: list[str],
    folder: Path,
) -> Iterator[Popen]:
    process = start(what, command)
    yield process
    if process.returncode != 0:
        log = folder / LOG
        raise RuntimeError(
            f"exit code {process.returncode}; {log} ends with\n{processes.tail(log)}"
        )


def results_of_equal(cell: Cell, results: Iterable[Result]) -> list[Result]:
    """Return the results of a cell that is not run, copied from the cell that it equals."""
    lines = (result for result in results if result.cell == cell.same_as)
    return [
        replace(
            line,
            cell=cell.name,
            method=cell.method,
            overrides={
                **cell.overrides,
                **{k: v for k, v in line.overrides.items() if k == "stop.tokens"},
            },
        )
        for line in lines
    ]


def tidy(output_dir: Path, cell: Cell, results: Sequence[Result]) -> None:
    """Remove recipe states, and the checkpoints that are not in ``results``, which are on disk."""
    keep = {result.checkpoint for result in results}
    for path in checkpoint.checkpoints(output_dir / CELLS / cell.name):
        kept = path.name in keep
        remove(output_dir, path / checkpoint.RECIPE_STATE if kept else path)


def _require_last_budget(budgets: Sequence[float], paths: list[Path]) -> None:
    progress = checkpoint.load_progress(paths[-1])
    if budgets and progress.get("budget") != budgets[-1]:
        raise RuntimeError(
            f"its epochs ended at {progress['total_flops']:.3g} FLOPs, before the last "
            f"budget of {budgets[-1]:.3g}; raise epochs"
        )
