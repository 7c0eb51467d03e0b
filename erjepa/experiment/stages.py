"""What a cell does, a process at a time: training, scoring, and what is kept of both."""

import shutil
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from erjepa.checkpoints import checkpoint
from erjepa.experiment.cells import (
    Cell,
    checkpoints_to_score,
    evaluation_command,
    training_command,
)
from erjepa.experiment.config import Experiment
from erjepa.experiment.results import CELLS, result_of
from erjepa.utils.results import Result


class Stage(NamedTuple):
    """A process that a cell needs next: what it does, and the command."""

    what: str
    command: list[str]


def stages(
    experiment: Experiment, output_dir: Path, cell: Cell, tokens: int | None
) -> Generator[Stage, None, list[Result]]:
    """What a cell does. Each stage has ended well before the next one is asked for.

    Args:
        experiment (Experiment): what the cell belongs to.
        output_dir (Path): folder of the experiment.
        cell (Cell): the run.
        tokens (int | None): tokens that end it, see :func:`tokens_of`.

    Yields:
        Stage: the process to run next.

    Returns:
        list[Result]: lines of ``results.jsonl``, whose checkpoints are to be kept.

    Raises:
        RuntimeError: if the run ended before the last budget.
    """
    folder = output_dir / CELLS / cell.name
    if folder.exists() and not checkpoint.resumable_checkpoints(folder):
        shutil.rmtree(folder)  # killed before there was anything to go on from
    yield Stage("training", training_command(experiment, cell, folder, tokens))
    paths = checkpoints_to_score(experiment, folder)
    if experiment.match == "flops" and tokens is None:
        _require_last_budget(experiment, paths)
    what = f"scoring {', '.join(path.name for path in paths)}"
    yield Stage(what, evaluation_command(experiment, cell, folder, paths))
    overrides = dict(cell.overrides)
    if tokens is not None:
        overrides["stop.tokens"] = tokens
    results = [
        result_of(output_dir, cell, overrides, path, experiment.score_on)
        for path in paths
    ]
    return [replace(result, of=len(results)) for result in results]


def tokens_of(cell: Cell, results: Iterable[Result]) -> int | None:
    """Tokens that the cell it depends on had taken at its end, among an experiment's results."""
    return max(
        (result.total_tokens for result in results if result.cell == cell.tokens_of),
        default=None,
    )


def tidy(folder: Path, results: Sequence[Result]) -> None:
    """Remove what only resuming needs, once the results of a cell are on disk.

    Args:
        folder (Path): output_dir of the run.
        results (Sequence[Result]): its results; checkpoints that are not among them go.
    """
    keep = {result.checkpoint for result in results}
    for path in checkpoint.checkpoints(folder):
        if path.name in keep:
            (path / checkpoint.RECIPE_STATE).unlink(missing_ok=True)
        else:
            shutil.rmtree(path)


def _require_last_budget(experiment: Experiment, paths: list[Path]) -> None:
    progress = checkpoint.load_progress(paths[-1])
    last = experiment.budgets[-1] if experiment.budgets else None
    if last is not None and progress.get("budget") != last:
        raise RuntimeError(
            f"its epochs ended at {progress['total_flops']:.3g} FLOPs, before the last "
            f"budget of {last:.3g}; raise epochs"
        )
