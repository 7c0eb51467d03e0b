"""The files of an experiment: its record ``experiment.json``, and results.

The results of a cell are in the cell's own folder. ``results.jsonl`` is assembled from those files,
in the order of cells.
"""

import json
import os
import platform
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import erjepa.configs
from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.lock import is_locked
from erjepa.configs.schema import DEFAULTS
from erjepa.studies.experiment import Experiment, Hardware, Record, read_record
from erjepa.studies.grid.cells import Cell, cell_name, cells, scores_merged
from erjepa.studies.grid.data import data_files
from erjepa.studies.results import Result, Weights, read_results
from erjepa.studies.training_log import read_training_log
from erjepa.utils.files import EXPERIMENT, PREDICTIONS, RESULTS, write_whole
from erjepa.utils.jsonl import to_jsonl
from erjepa.utils.summary import read_summary

CELLS = "cells"
LOCKS = "locks"  # one per cell, held while it runs
LOG = "run.log"  # output of a cell's processes
_PROGRESS = "steps", "total_flops", "total_tokens", "epoch", "train_seconds"
# Metrics left out of a result: speed and memory of the machine, and totals.
_NOT_KEPT = re.compile(r".*per_second|peak_memory_|total_")
_LAST_STEPS = 50
# Keys that may differ when an experiment is started again.
_FREE = ("output_dir", "devices", "report", "budgets_of", "launcher", "slurm")
# Parts of a record that a grid which is started again compares.
_STARTED = ("config", "recipe_configs", "data_files")


def gather_results(output_dir: Path, cells: Sequence[Cell]) -> dict[str, list[Result]]:
    """Assemble ``results.jsonl`` and return the results of each finished cell, by its name.

    Several processes may do so at the same time. Each reads the files again after writing, until
    nothing changes, so the last writer has read the results of all.
    """
    path = output_dir / RESULTS
    while True:
        results = results_of_cells(output_dir, cells)
        text = to_jsonl(asdict(line) for lines in results.values() for line in lines)
        if text == (path.read_text() if path.exists() else ""):
            return results
        write_whole(path, text)


def results_of_cells(
    output_dir: Path, cells: Sequence[Cell]
) -> dict[str, list[Result]]:
    """Return the results of each finished cell, by its name, in the order of cells.

    A cell without results has those of a cell that it equals. Lines of ``results.jsonl`` whose cell
    has no file are kept.
    """
    ran: dict[str, list[Result]] = {}
    for line in read_results(output_dir):
        # Not those copied from an equal cell.
        if line.log.startswith(f"{CELLS}/{line.cell}/"):
            ran.setdefault(line.cell, []).append(line)
    own: dict[str, list[Result]] = {}
    # Of any of the cells that are equal, by the name of the first.
    equal: dict[str, list[Result]] = {}
    for cell in cells:
        before = ran.pop(cell.name, [])
        own[cell.name] = read_results(output_dir / CELLS / cell.name) or before
        first = cell.same_as or cell.name
        equal[first] = equal.get(first) or own[cell.name]
    results: dict[str, list[Result]] = {}
    for cell in cells:
        copies = [_copied(line, cell) for line in equal[cell.same_as or cell.name]]
        if lines := own[cell.name] or copies:
            results[cell.name] = lines
    return results | ran


def unfinished(experiment: Experiment) -> list[Cell]:
    """Return the cells of an experiment that have no results yet."""
    all_cells = cells(experiment)
    finished = results_of_cells(Path(experiment.output_dir), all_cells)
    return [cell for cell in all_cells if cell.name not in finished]


def _copied(line: Result, cell: Cell) -> Result:
    """Return the result of an equal cell as that of ``cell``."""
    tokens = {k: v for k, v in line.overrides.items() if k == "stop.tokens"}
    overrides = {**cell.overrides, **tokens}
    return replace(line, cell=cell.name, method=cell.method, overrides=overrides)


def result_of(
    experiment: Experiment,
    output_dir: Path,
    cell: Cell,
    scored: Cell,
    path: Path,
    weights: Weights,
) -> Result:
    """Build the result of a scored checkpoint.

    Args:
        scored: the cell whose config scores ``cell``, one of :func:`scored_as`.
        path: folder of the checkpoint; it does not exist for the base model.
    """
    untrained = dict.fromkeys(_PROGRESS, 0)
    progress = checkpoint.load_progress(path) if cell.budget_factor else untrained
    (folder,) = checkpoint.of_weights(path, weights if cell.budget_factor else "last")
    split = experiment.score_on
    merged = scores_merged(scored)
    name = checkpoint.name_of_scores(folder, split, merged=merged)
    scores = scores_dir(path.parent, cell, scored.dataset) / "evaluation" / name
    summary = read_summary(scores)
    examples = summary.readings[summary.primary].examples
    rate = summary.examples_per_second
    log = path.parent / "logs" / "metrics.txt"
    return Result(
        cell=cell.name,
        dataset=scored.dataset,
        stage=cell.dataset if experiment.continual else None,
        method=cell.method,
        seed=cell.seed,
        overrides=cell.overrides,
        checkpoint=path.name,
        weights=weights,
        budget=progress.get("budget"),
        **{key: progress[key] for key in _PROGRESS},
        split=split,
        task=summary.task,
        accuracy=summary.accuracy,
        primary=summary.primary,
        readings={name: reading.share for name, reading in summary.readings.items()},
        examples=examples,
        target_loss=summary.target_loss,
        predictions=str((scores / PREDICTIONS).relative_to(output_dir)),
        log=str(log.relative_to(output_dir)),
        eval_seconds=examples / rate if rate else None,
        metrics=last_metrics(log, progress["steps"]),
    )


def last_metrics(log: Path, steps: int) -> dict[str, float]:
    """Return the mean of each logged metric over the last 50 steps up to step ``steps``.

    Steps that did not log a metric are left out; for metrics of replay, also steps that replayed
    no pair. Without a log the result is empty.
    """
    logged = read_training_log(log) if log.is_file() else {}
    rows = [row for step, row in logged.items() if 0 <= steps - step < _LAST_STEPS]
    replayed = [row for row in rows if row.get("replayed")] or rows
    means = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if not _NOT_KEPT.match(name):
            of = replayed if name.startswith("replay_") else rows
            means[name] = fmean(row[name] for row in of if name in row)
    return means


def scores_dir(folder: Path, cell: Cell, dataset: str) -> Path:
    """Return the folder for the scores on a dataset of the run in ``folder``."""
    return folder if dataset == cell.dataset else folder / f"on_{dataset}"


def record_experiment(output_dir: Path, experiment: Experiment) -> None:
    """Write ``experiment.json``, after checking that it continues the recorded experiment.

    Seeds, methods and, outside a sequence, datasets may be added to a recorded experiment. Those of
    which no cell has begun may change or be left out; if no cell has begun, everything may change.

    Raises:
        ValueError: naming the key or file, if the folder holds a different experiment, or a config
            of the recipe or a file of the datasets has changed.
    """
    path = output_dir / EXPERIMENT
    record = asdict(_record(experiment))
    if path.exists():
        started = read_record(output_dir)
        if begun := _begun(output_dir, started.config):
            _require_continued(path, started, experiment, begun)
        before = asdict(started)
        # A file that is gone may come back.
        record["data_files"] = before["data_files"] | record["data_files"]
        # As texts, which compare the order of entries too: tables have it.
        if all(json.dumps(before[key]) == json.dumps(record[key]) for key in _STARTED):
            return
        configs = [{**one["config"], "report": None} for one in (before, record)]
        is_same = json.dumps(configs[0]) == json.dumps(configs[1])
        if begun and is_same:  # its results are of the machine and versions of before
            record = {**before, **{key: record[key] for key in _STARTED}}
    write_whole(path, json.dumps(record, indent=2) + "\n")


def _begun(output_dir: Path, experiment: Experiment) -> list[tuple[str, str, int]]:
    """Return dataset, method and seed of each cell that is running, or has results, predictions or
    a checkpoint to resume from.
    """
    have_results = {line.cell for line in read_results(output_dir)}

    def has_begun(name: str) -> bool:
        folder = output_dir / CELLS / name
        return (
            name in have_results
            or (folder / RESULTS).exists()
            or bool(checkpoint.resumable_checkpoints(folder))
            or any(folder.glob("**/evaluation"))
            or is_locked(output_dir / LOCKS / name)
        )

    entries = product(experiment.datasets, experiment.methods, experiment.seeds)
    return [entry for entry in entries if has_begun(cell_name(*entry))]


def _require_continued(
    path: Path,
    started: Record,
    experiment: Experiment,
    begun: Collection[tuple[str, str, int]],
) -> None:
    """Raise ValueError if something has changed on which one of the begun cells depends."""
    before, config = asdict(started.config), asdict(experiment)
    datasets, methods, seeds = (set(names) for names in zip(*begun, strict=True))
    if config["continual"]:
        datasets = {*config["datasets"], *config["also_scored"]}
        if list(before["datasets"]) != list(config["datasets"]):
            raise ValueError(
                f"{path} was started with the sequence of datasets "
                f"{', '.join(before['datasets'])}, not {', '.join(config['datasets'])}. "
                "What a run starts from, and is scored on, depends on it; choose another "
                "output_dir."
            )
    for values in before, config:
        values["seeds"] = sorted(seeds.intersection(values["seeds"]))
        for key, names in (("datasets", datasets), ("methods", methods)):
            values[key] = {k: v for k, v in values[key].items() if k in names}
    for key in config:
        if key not in _FREE and (found := _difference(key, before[key], config[key])):
            place, then, now = found
            raise ValueError(
                f"{path} was started with {place}={then}, not {now}. An experiment may gain "
                "seeds, datasets and methods. To change a method that has no results, first delete "
                f"the folders of its cells in {path.parent / CELLS}; for anything else choose "
                "another output_dir."
            )
    for name, values in _recipe_configs(experiment, datasets).items():
        recorded = started.recipe_configs.get(name, values)
        # A config recorded before there was a key had its default.
        both = [erjepa.configs.merge(DEFAULTS, one) for one in (recorded, values)]
        if found := _difference(name, *both):
            place, then, now = found
            raise ValueError(
                f"{path} was started with {place.removeprefix(f'{name}.')}={then} in the config "
                f"{name}, which now has {now}. Restore it, or choose another output_dir."
            )
    ran = [c for c in cells(experiment) if (c.dataset, c.method, c.seed) in begun]
    for file, digest in data_files(experiment, ran).items():
        if (then := started.data_files.get(file, digest)) != digest:
            raise ValueError(
                f"{path} was started with another {file} ({then}; now {digest}). Restore it, "
                "or choose another output_dir."
            )


def _difference(key: str, started: Any, given: Any) -> tuple[str, str, str] | None:
    """Return the first key that differs, dotted, and its values as text; ``None`` if none does."""
    if isinstance(started, Mapping) and isinstance(given, Mapping):
        below = (
            _difference(f"{key}.{name}", started.get(name, ...), given.get(name, ...))
            for name in {**started, **given}
        )
        return next(filter(None, below), None)
    if started == given:
        return None
    then, now = (
        "(unset)" if value is ... else json.dumps(value) for value in (started, given)
    )
    return key, then, now


def _recipe_configs(
    experiment: Experiment, datasets: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return the content of the configs of datasets, with that of their ``defaults``."""
    configs = {experiment.dataset(name)["config"] for name in datasets}
    return {name: erjepa.configs.merged(name) for name in sorted(configs)}


def _record(experiment: Experiment) -> Record:
    packages = ("torch", "torchtune", "torchao", "erjepa")
    versions = {name: version(name) for name in packages}
    gpus = range(torch.cuda.device_count())
    names = [torch.cuda.get_device_name(i) for i in gpus]
    return Record(
        versions={"python": platform.python_version(), **versions},
        revision=_revision(),
        hardware=Hardware(_cpu(), os.cpu_count(), names),
        config=experiment,
        recipe_configs=_recipe_configs(
            experiment, [*experiment.datasets, *experiment.also_scored]
        ),
        data_files=data_files(experiment, cells(experiment)),
    )


def _revision() -> str | None:
    """Return the Git revision of the source tree, or ``None`` if the package is installed."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    git = subprocess.run(command, capture_output=True, text=True, check=False)
    return git.stdout.strip() or None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
