"""Predictions on disk: one JSON object a line, kept across interruptions."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from erjepa.checkpoints.checkpoint import score_name
from erjepa.checkpoints.model_card import datasets_of
from erjepa.configs import Config
from erjepa.tasks.score import write_scores
from erjepa.utils.files import PREDICTIONS
from erjepa.utils.jsonl import to_jsonl
from erjepa.utils.summary import Summary

SETTINGS = "settings.json"


def name_of_scores(path: Path | None, cfg: Config) -> str:
    """The name of a checkpoint's scores.

    Args:
        path: folder of its weights; ``None``: the base model.
    """
    name = "base" if path is None else score_name(path)
    split = "_validation" * (cfg.eval_split == "validation")
    return f"{name}{split}{'_merged' * cfg.merged}"


def folder_of(folder: Path, dataset: Any, key: str) -> Path:
    """The folder of the scores on a dataset, a separate one for each dataset.

    Args:
        folder: of the checkpoint. The dataset that it is scored on first has it; each other one has
            a folder beside it, ``NAME_on_DATASET_DIGEST``.
        key: key of the settings that has it, ``eval_dataset`` or ``dataset``.
    """
    try:
        first = json.loads((folder / SETTINGS).read_text())[key]
    except (FileNotFoundError, ValueError, KeyError):
        return folder  # there are none, or they are being written
    if first == dataset:
        return folder
    digest = hashlib.sha256(json.dumps(dataset, sort_keys=True).encode()).hexdigest()
    names = "+".join(name for name, _ in datasets_of({"dataset": dataset}))
    return folder.with_name(f"{folder.name}_on_{names}_{digest[:6]}")


class PredictionStore:
    """The results folder of one evaluation.

    While it runs, each rank appends to its own file; ``finish`` puts
    ``predictions.jsonl`` and ``summary.json`` in place. An interrupted evaluation finds what
    it had, if its settings are the same; with other settings it starts anew.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], rank: int) -> None:
        self.folder = folder
        self._settings = json.dumps(settings, indent=2, sort_keys=True) + "\n"
        self._part = folder / f"part_{rank}.jsonl"

    def open(self) -> dict[int, dict[str, Any]]:
        """Make the folder ready, on one rank; the predictions that are there already, by id."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / SETTINGS
        if not settings.exists() or settings.read_text() != self._settings:
            for path in (*self._parts(), self.folder / PREDICTIONS):
                path.unlink(missing_ok=True)
            settings.write_text(self._settings)
        predictions = {}
        for path in (*self._parts(), self.folder / PREDICTIONS):
            for line in path.read_text().splitlines() if path.exists() else ():
                try:
                    prediction = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the last line of a killed run
                predictions[prediction["id"]] = prediction
        return predictions

    def append(self, predictions: Iterable[Mapping[str, Any]]) -> None:
        """Add predictions of this rank."""
        text = to_jsonl(predictions)
        # A killed run may have left half a line; what follows must not join it.
        if self._part.exists() and not self._part.read_bytes().endswith(b"\n"):
            text = "\n" + text
        with self._part.open("a") as part:
            part.write(text)

    def finish(
        self, predictions: Iterable[Mapping[str, Any]], summary: Summary
    ) -> None:
        """Put the final files in place, on one rank."""
        write_scores(self.folder, predictions, summary)
        for path in self._parts():
            path.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part_*.jsonl"))
