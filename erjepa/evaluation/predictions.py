"""Stores predictions on disk, one JSON object per line, across interruptions."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from erjepa.checkpoints.checkpoint import score_name
from erjepa.checkpoints.model_card import datasets_of
from erjepa.tasks.score import write_scores
from erjepa.utils.files import PREDICTIONS, SUMMARY, config_of_run
from erjepa.utils.jsonl import to_jsonl
from erjepa.utils.summary import Summary, read_summary

SETTINGS = "settings.json"
_MAX_LABELS = 150  # bytes, of the 255 of a file name


def folder_of(folder: Path, dataset: Any, key: str) -> Path:
    """Return the folder of the scores on a dataset; each dataset has its own.

    Args:
        folder: folder of the checkpoint's scores. The first scored dataset uses it; every other
            dataset uses a sibling folder ``NAME_on_LABEL_DIGEST``.
        dataset: section of the dataset, as JSON.
        key: key of the dataset in the settings, ``eval_dataset`` or ``dataset``.
    """
    try:
        first = json.loads((folder / SETTINGS).read_text())[key]
    except (FileNotFoundError, ValueError, KeyError):
        return folder  # there are no settings, or they are being written
    if first == dataset:
        return folder
    digest = hashlib.sha256(json.dumps(dataset, sort_keys=True).encode()).hexdigest()
    labels = "+".join(label for label, _ in datasets_of(dataset))
    labels = labels.encode()[:_MAX_LABELS].decode(errors="ignore")
    # The digest decides: earlier versions had other labels.
    existing = folder.parent.glob(f"{folder.name}_on_*_{digest[:6]}")
    return next(existing, folder.with_name(f"{folder.name}_on_{labels}_{digest[:6]}"))


def require_own_scores(output_dir: Path, path: Path) -> None:
    """Check that scores of a checkpoint neither pass for nor replace those of another one.

    Args:
        output_dir: folder to write the scores to; that of a run takes only its own.
        path: folder of the weights.

    Raises:
        ValueError: naming both.
    """
    owner, run = config_of_run(output_dir), config_of_run(path)
    if owner is not None:
        if run is None or not run.samefile(owner):
            place = "a new folder" if run is None else run.parent
            raise ValueError(
                f"output_dir={output_dir} belongs to the run in {owner.parent}, and {path} is "
                f"not its checkpoint; set output_dir={place}"
            )
        return
    for file in output_dir.glob(f"evaluation/*/{SUMMARY}"):
        other = Path(read_summary(file.parent).checkpoint or "")
        if other.is_dir() and score_name(other) == score_name(path):
            if not other.samefile(path):
                raise ValueError(
                    f"{file.parent} holds the scores of {other}, which those of {path} would "
                    "replace; set another output_dir"
                )


class PredictionStore:
    """The output folder of one evaluation.

    During the evaluation each rank appends predictions to its own file; ``finish`` writes
    ``predictions.jsonl`` and ``summary.json``. An interrupted evaluation reuses its predictions if
    the settings are the same; with other settings it starts anew.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], rank: int) -> None:
        self.folder = folder
        self._settings = json.dumps(settings, indent=2, sort_keys=True) + "\n"
        self._part = folder / f"part_{rank}.jsonl"

    def open(self) -> dict[int, dict[str, Any]]:
        """Prepare the folder and return the existing predictions by id, without their verdicts,
        which may be another task's; called on one rank.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / SETTINGS
        if not settings.exists() or settings.read_text() != self._settings:
            final = [self.folder / name for name in (PREDICTIONS, SUMMARY)]
            for path in (*self._parts(), *final):
                path.unlink(missing_ok=True)
            settings.write_text(self._settings)
        verdicts = {"extracted"}
        if (self.folder / SUMMARY).exists():
            verdicts |= read_summary(self.folder).readings.keys()
        predictions = {}
        for path in (*self._parts(), self.folder / PREDICTIONS):
            for line in path.read_text().splitlines() if path.exists() else ():
                try:
                    prediction = json.loads(line)
                except json.JSONDecodeError:
                    continue  # an empty line, or the last one of a killed run
                predictions[prediction["id"]] = {
                    name: v for name, v in prediction.items() if name not in verdicts
                }
        return predictions

    def append(self, predictions: Iterable[Mapping[str, Any]]) -> None:
        with self._part.open("a") as part:
            # A killed evaluation can leave an incomplete line, which must not join the next one.
            part.write("\n" + to_jsonl(predictions))

    def finish(
        self, predictions: Iterable[Mapping[str, Any]], summary: Summary
    ) -> None:
        """Write the final files and remove those of the ranks; called on one rank."""
        write_scores(self.folder, predictions, summary)
        for path in self._parts():
            path.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part_*.jsonl"))
