"""The datasets that the runs of an experiment read, and their local files."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from erjepa.checkpoints.fingerprint import digest_of_file
from erjepa.configs import Config, components
from erjepa.datasets import require_sources
from erjepa.studies.experiment import Experiment
from erjepa.studies.grid.cells import Cell, scored_as
from erjepa.studies.grid.config import load_run, place_of


def require_data(experiment: Experiment, waiting: Iterable[Cell]) -> None:
    """Check the datasets of some cells as :func:`~erjepa.datasets.require_sources` does, and the
    folders of databases.

    Raises:
        FileNotFoundError: naming the dataset, if a file or folder is missing.
        ValueError: naming the dataset and the key, if an argument is invalid.
    """
    checked = set()
    for dataset, key, run in _runs(experiment, waiting):
        if run.databases is not None and not Path(run.databases).is_dir():
            raise FileNotFoundError(
                f"databases={run.databases}, of dataset {dataset}: no such folder; set "
                f"datasets.{dataset}.databases, or leave the dataset out with order=[...]"
            )
        section = getattr(run, key)
        text = json.dumps([part.as_dict() for part in components(section)])
        if (key, text) in checked:
            continue
        checked.add((key, text))
        try:
            require_sources(section, key)
        except (FileNotFoundError, ValueError) as error:
            error.args = (f"{place_of(experiment, dataset)}: {error}",)
            raise


def data_files(experiment: Experiment, ran: Iterable[Cell]) -> dict[str, str]:
    """Return the digests of the local files that are the ``source`` of a dataset of some cells, or
    of its splits in a folder, by path.
    """
    files: set[Path] = set()
    for _, key, run in _runs(experiment, ran):
        for part in components(getattr(run, key)):
            if isinstance(source := part.get("source"), str):
                path = Path(source)
                for split in str(part.get("split")).split("+"):  # train[:50%]+test
                    found = [*path.glob(f"*{split.partition('[')[0].strip()}*")]
                    inside = (file for one in found for file in one.rglob("*"))
                    files |= {path, *found, *inside}
    return {str(f): digest_of_file(f) for f in sorted(files) if f.is_file()}


def _runs(
    experiment: Experiment, ran: Iterable[Cell]
) -> Iterator[tuple[str, str, Config]]:
    """Yield the dataset's name, the key of its section, and the config of all that some cells are
    trained and scored on.
    """
    key = "eval_dataset" if experiment.score_on == "test" else "dataset"
    for cell in ran:
        if cell.budget_factor:
            yield cell.dataset, "dataset", load_run(cell.config, cell.overrides)
        for one in scored_as(experiment, cell):
            yield one.dataset, key, load_run(one.config, one.overrides)
