"""Stores predictions on disk, one JSON object per line, across interruptions."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from erjepa.checkpoints.checkpoint import score_name
from erjepa.checkpoints.model_card import datasets_of
from erjepa.tasks.score import write_scores
from erjepa.utils.checked import leaves
from erjepa.utils.files import PREDICTIONS, SUMMARY, config_of_run, write_whole
from erjepa.utils.jsonl import to_jsonl
from erjepa.utils.summary import Summary, read_summary

log = logging.getLogger(__name__)

SETTINGS = "settings.json"
_BASE = ("base weights", "base_adapters")  # settings that identify the base model
_MAX_LABELS = 150  # bytes, of the 255 of a file name


def folder_of(folder: Path, dataset: Any, key: str) -> Path:
    """Choose the folder of the scores on a dataset, and record the dataset there if it is new: each
    dataset has its own, also if evaluations of several start together.

    Args:
        folder: folder of the checkpoint's scores. The first scored dataset uses it; every other
            dataset uses a sibling folder ``NAME_on_LABEL_DIGEST``.
        dataset: section of the dataset, as JSON.
        key: key of the dataset in the settings, ``eval_dataset`` or ``dataset``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), (folder / SETTINGS).open("x") as file:
        json.dump({key: dataset}, file)
    stored = _read_settings(folder)
    if key not in stored or stored[key] == dataset:
        return folder
    digest = hashlib.sha256(json.dumps(dataset, sort_keys=True).encode()).hexdigest()
    labels = "+".join(label for label, _ in datasets_of(dataset))
    labels = labels.encode()[:_MAX_LABELS].decode(errors="ignore")
    return folder.with_name(f"{folder.name}_on_{labels}_{digest[:6]}")


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
        is_namesake = other.is_dir() and score_name(other) == score_name(path)
        if is_namesake and not other.samefile(path):
            raise ValueError(
                f"{file.parent} holds the scores of {other}, which those of {path} would "
                "replace; set another output_dir"
            )


def require_own_base(output_dir: Path, base: Mapping[str, Any]) -> None:
    """Check that scores of the base model do not replace those of another base model.

    Args:
        base: the settings that identify the base model.

    Raises:
        ValueError: naming the scores.
    """
    for file in sorted(output_dir.glob(f"evaluation/*/{SETTINGS}")):
        stored = _read_settings(file.parent)
        is_of_base = "weights" not in stored and "base weights" in stored
        if is_of_base and base != {k: stored[k] for k in _BASE if k in stored}:
            raise ValueError(
                f"{file.parent} holds the scores of another base model, from "
                f"{stored['checkpointer'].get('checkpoint_dir')}; set another output_dir"
            )


def _read_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of an evaluation; empty if there are none, or they are being written."""
    try:
        return json.loads((folder / SETTINGS).read_text())
    except (FileNotFoundError, ValueError):
        return {}


def _deciding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide answers, not how they are scored: weights were trained over
    one base, so only without weights do the paths of ``base_adapters`` identify it.
    """
    others = {"scoring", *["base_adapters"] * ("weights" in settings)}
    return {k: v for k, v in settings.items() if k not in others}


class PredictionStore:
    """The output folder of one evaluation.

    During the evaluation each rank appends predictions to its own file; ``finish`` writes
    ``predictions.jsonl`` and ``summary.json``. An interrupted evaluation reuses its predictions if
    the settings are the same; with other settings it starts anew, and logs which ones changed.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], rank: int) -> None:
        self.folder = folder
        self._settings = json.dumps(settings, indent=2, sort_keys=True)
        self._part = folder / f"part_{rank}.jsonl"

    def open(self) -> dict[int, dict[str, Any]]:
        """Prepare the folder and return the existing predictions by id, without their verdicts,
        which may be another task's; called on one rank.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        then, now = _read_settings(self.folder), json.loads(self._settings)
        if _deciding(then) != _deciding(now):
            self._delete_answers(then, now)
        write_whole(self.folder / SETTINGS, f"{self._settings}\n")
        predictions = {}
        for path in (*self._parts(), self.folder / PREDICTIONS):
            for line in path.read_bytes().splitlines() if path.exists() else ():
                try:
                    prediction = json.loads(line)
                except ValueError:
                    continue  # an empty line, or the last one of a killed run
                # Verdicts follow "extracted".
                names = takewhile("extracted".__ne__, prediction)
                predictions[prediction["id"]] = {n: prediction[n] for n in names}
        return predictions

    def append(self, predictions: Iterable[Mapping[str, Any]]) -> None:
        with self._part.open("a", encoding="utf-8") as part:
            # A killed evaluation can leave an incomplete line, which must not join the next one.
            part.write("\n" + to_jsonl(predictions))

    def finish(
        self, predictions: Iterable[Mapping[str, Any]], summary: Summary
    ) -> None:
        """Write the final files and remove those of the ranks; called on one rank."""
        write_scores(self.folder, predictions, summary)
        for path in self._parts():
            path.unlink()

    def _delete_answers(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Delete the answers of the settings of ``then``, and say in which settings they differ."""
        final = [self.folder / name for name in (PREDICTIONS, SUMMARY)]
        answers = [path for path in (*self._parts(), *final) if path.exists()]
        if answers:
            then, now = (dict(leaves("", settings)) for settings in (then, now))
            changes = [
                f"{key[1:]} was {then.get(key)}, is {now.get(key)}"
                for key in sorted({*then, *now})
                if then.get(key) != now.get(key)
            ]
            log.warning(
                f"{self.folder}: its answers are deleted and generated anew, as settings have "
                f"changed: {'; '.join(changes)}."
            )
        for path in answers:
            path.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part_*.jsonl"))
