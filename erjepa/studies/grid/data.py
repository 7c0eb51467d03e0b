"""The data that the runs of an experiment read, and digests of its local files."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from erjepa.configs import Config, components
from erjepa.datasets import require_sources
from erjepa.studies.experiment import Experiment
from erjepa.studies.grid.cells import Cell, scored_as
from erjepa.studies.grid.config import load_run, place_of

_CHUNK = 1 << 20  # bytes


def require_data(experiment: Experiment, waiting: Iterable[Cell]) -> None:
    """Check the datasets of some cells as :func:`~erjepa.datasets.require_sources` does, and the
    folders of databases, which only the scoring of a run reads.

    Raises:
        FileNotFoundError: naming the dataset, if a file or folder is missing.
        ValueError: naming the dataset and the key, if an argument is invalid.
    """
    for dataset, key, run in _configs(experiment, waiting):
        try:
            require_sources(getattr(run, key), key)
        except (FileNotFoundError, ValueError) as error:
            error.args = (f"{place_of(experiment, dataset)}: {error}",)
            raise
        if run.databases is not None and not Path(run.databases).is_dir():
            raise FileNotFoundError(
                f"databases={run.databases}, of dataset {dataset}: no such folder; set "
                f"datasets.{dataset}.databases, or leave the dataset out with order=[...]"
            )


def data_files(experiment: Experiment, ran: Iterable[Cell]) -> dict[str, str]:
    """Return the digests of the local files that some cells read, by file or by folder and split,
    as far as the files are there.
    """
    found: dict[str, list[Path]] = {}
    for _, key, run in _configs(experiment, ran):
        with suppress(FileNotFoundError, ValueError):
            found |= require_sources(getattr(run, key), key)
    return {name: _digest(files) for name, files in sorted(found.items())}


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            for chunk in iter(partial(file.read, _CHUNK), b""):
                digest.update(chunk)
    size = sum(path.stat().st_size for path in files)
    return f"{size} bytes, {digest.hexdigest()[:12]}"


def _configs(
    experiment: Experiment, ran: Iterable[Cell]
) -> Iterator[tuple[str, str, Config]]:
    """Yield what some cells are trained and scored on, each once: the dataset's name, the key of
    its section, the config.
    """
    scored = "eval_dataset" if experiment.score_on == "test" else "dataset"
    seen = set()
    for cell in ran:
        reads: list[tuple[str, str, Config]] = []
        if cell.budget_factor:
            run = load_run(cell.config, cell.overrides)
            reads.append((cell.dataset, "dataset", run))
        for one in scored_as(experiment, cell):
            run = load_run(one.config, {**one.overrides, **experiment.evaluation})
            reads.append((one.dataset, scored, run))
        for dataset, key, run in reads:
            parts = [part.as_dict() for part in components(getattr(run, key))]
            if (text := json.dumps([key, run.databases, parts])) not in seen:
                seen.add(text)
                yield dataset, key, run
