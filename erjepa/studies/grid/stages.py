"""What a cell does, a process at a time: training, scoring, and what is kept of both."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from erjepa.checkpoints import checkpoint
from erjepa.studies.experiment import Experiment
from erjepa.studies.grid.cells import (
    Cell,
    budgets_of,
    checkpoints_to_score,
    evaluation_command,
    scored_as,
    training_command,
)
from erjepa.studies.grid.output import CELLS, result_of, scores_dir
from erjepa.studies.results import Result
from erjepa.utils.folders import make_folder, remove


class Stage(NamedTuple):
    """A process that a cell needs next: what it does, and the command."""

    what: str
    command: list[str]


def stages(
    experiment: Experiment, output_dir: Path, cell: Cell, before: Sequence[Result]
) -> Generator[Stage, None, list[Result]]:
    """What a cell does. Each stage has ended well before the next one is asked for.

    Args:
        experiment (Experiment): what the cell belongs to.
        output_dir (Path): folder of the experiment.
        cell (Cell): the run.
        before: results of the experiment, those of the cells that it needs among them.

    Yields:
        Stage: the process to run next.

    Returns:
        list[Result]: lines of ``results.jsonl``, whose checkpoints are to be kept.

    Raises:
        RuntimeError: if the run ended before the last budget.
        ValueError: if the folder of the cell was not made by a grid.
    """
    folder, tokens = output_dir / CELLS / cell.name, _tokens_of(cell, before)
    after = next((output_dir / r.run for r in before if r.cell == cell.after), None)
    make_folder(output_dir, folder)
    if not checkpoint.resumable_checkpoints(folder):
        remove(output_dir, folder)  # killed before there was anything to resume from
        make_folder(output_dir, folder)
    paths: list[Path] = []
    if cell.datasets:
        command = training_command(experiment, cell, folder, tokens, after)
        yield Stage("training", command)
        paths = checkpoints_to_score(experiment, folder)
        if experiment.match == "flops" and tokens is None:
            _require_last_budget(budgets_of(experiment, cell), paths)
    names = ", ".join(path.name for path in paths) or "the base model"
    for scored in scored_as(experiment, cell):
        what = f"scoring {names}" + experiment.continual * f" on {scored.dataset}"
        scores = scores_dir(folder, cell, scored.dataset)
        yield Stage(what, evaluation_command(experiment, scored, scores, paths))
    overrides = dict(cell.overrides)
    if tokens is not None:
        overrides["stop.tokens"] = tokens
    results = [
        result_of(
            output_dir,
            cell,
            overrides,
            path,
            experiment.score_on,
            weights,
            scored=scored if experiment.continual else None,
        )
        for path in paths or [folder / "base"]
        for weights in experiment.score_weights
        for scored in scored_as(experiment, cell)
    ]
    return [replace(result, of=len(results)) for result in results]


def results_of_equal(cell: Cell, results: Iterable[Result]) -> list[Result]:
    """The lines of a cell that is not run: those of the cell that it is equal to."""
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


def _tokens_of(cell: Cell, results: Iterable[Result]) -> int | None:
    """Tokens that the cell it depends on had processed at its end."""
    return max(
        (result.total_tokens for result in results if result.cell == cell.tokens_of),
        default=None,
    )


def tidy(output_dir: Path, cell: Cell, results: Sequence[Result]) -> None:
    """Remove what only resuming needs, once the results of a cell are on disk.

    Args:
        output_dir: folder of the experiment.
        cell: the run.
        results: its results; checkpoints that are not among them are removed.
    """
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
