"""Loads the YAML file of an experiment and checks it, and the config of every run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import erjepa.configs
from erjepa.configs.schema import KEYS, Config
from erjepa.studies.experiment import CONTROLS, Datasets, Experiment, Order
from erjepa.utils.checked import checked, reject_unknown

_KEYS = [*(field.name for field in fields(Experiment)), "order"]
# Sections that are merged key by key with those of ``defaults``.
_ADDED = ("overrides", "budgets_of", "slurm")
# Keys that the grid sets for each run.
_OWN = (
    "seed output_dir resume_from_checkpoint checkpoint_at_flops checkpoint_dir "
    "eval_split checkpoint keep_epochs"
).split()


def run_of(
    experiment: Experiment, dataset: str, method: str
) -> tuple[str, dict[str, Any]]:
    """Return the config of a method's run on a dataset, and its overrides, without the keys of the
    grid: those of the method win over those of the dataset, and both over those of all runs. A
    section that the dataset sets as a whole replaces the keys of all runs there.
    """
    own = experiment.dataset(dataset)
    config = own.pop("config")
    shared = {
        key: value
        for key, value in experiment.overrides.items()
        if "." not in key or key.partition(".")[0] not in own
    }
    overrides = {**shared, **own, **experiment.methods[method]}
    return config, {key: overrides[key] for key in overrides if key not in CONTROLS}


def load_experiment(name: str, arguments: Sequence[str] = ()) -> Experiment:
    """Load an experiment and check the configs of all its runs.

    A file may inherit from another one with ``defaults: NAME``. Its ``overrides``, ``budgets_of``
    and ``slurm`` are merged with the inherited ones key by key; any other key replaces the
    inherited value. ``key=value`` in ``arguments`` replaces a key;
    ``overrides.key=value`` adds to a section. The key ``order`` selects datasets and their order.

    Raises:
        ValueError: naming the file and the key, if a key is unknown or a value is invalid, in
            the experiment or in any of its runs.
        FileNotFoundError: if the experiment, or a config that it names, does not exist.
    """
    files = erjepa.configs.chain(name, "experiments")
    path, _ = files[0]
    values: dict[str, Any] = {}
    for _, values_of_file in reversed(files):
        for key, value in values_of_file.items():
            before = values.get(key) if key in _ADDED else None
            if isinstance(before, Mapping) and isinstance(value, Mapping):
                value = {**before, **value}
            values[key] = value
    try:
        for argument in arguments:
            _override(values, argument)
        reject_unknown("", values, _KEYS)
        values = erjepa.configs.resolved(values)
        order = values.pop("order", None)
        if order is not None:
            datasets = checked(Datasets, values.get("datasets"), "datasets")
            order = checked(Order, order, "order")
            reject_unknown("datasets.", order, datasets)
            values["datasets"] = {name: datasets[name] for name in order}
        experiment = checked(Experiment, values, "")
        for name in (*experiment.datasets, *experiment.also_scored):
            _check_runs(experiment, name)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return experiment


def output_of(name: str) -> Path:
    """Return the output folder of an experiment, given that folder, a YAML file or a name.

    Raises:
        FileNotFoundError: if there is no such folder, file or packaged experiment.
    """
    path = Path(name)
    if not path.is_dir():
        try:
            path = Path(load_experiment(name).output_dir)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{name} is not the output of an experiment; {error}"
            ) from None
    return path.absolute()


def _override(values: dict[str, Any], argument: str) -> None:
    """Apply ``key=value`` or ``section.key=value`` of the command line."""
    name, separator, text = argument.partition("=")
    key, _, rest = name.partition(".")
    parsed = erjepa.configs.with_overrides({}, [f"{key}{separator}{text}"])
    if key not in parsed:  # such as seeds[0]=3
        raise ValueError(f"{argument}: expected key=value or section.key=value")
    value = parsed[key]
    if key in {*KEYS} - {*_KEYS, *_OWN}:
        raise ValueError(f"{key} is a key of runs; say overrides.{argument}")
    if not rest:
        values[key] = value
    elif key in (*_ADDED, "datasets", "also_scored"):
        before = values.get(key)
        before = before if isinstance(before, Mapping) else {}
        name, _, below = rest.partition(".")
        if below and key not in _ADDED:  # a key of one dataset
            entry = before.get(name)
            entry = entry if isinstance(entry, Mapping) else {"config": entry}
            rest, value = name, {**entry, below: value}
        values[key] = {**before, rest: value}
    else:
        reject_unknown("", [key], _KEYS)
        raise ValueError(f"{argument}: {key} is replaced as a whole, {key}=...")


def as_arguments(overrides: Mapping[str, Any]) -> list[str]:
    """Return overrides as command-line arguments of the recipe."""
    return [
        key if key.startswith("~") else f"{key}={_argument(value)}"
        for key, value in overrides.items()
    ]


def _argument(value: Any) -> str:
    """Return what the recipe reads as ``value``, quoted if it is a text that would be parsed."""
    try:
        read = erjepa.configs.with_overrides({}, [f"value={value}"])
    except ValueError:
        read = {}
    is_plain = isinstance(value, str) and read == {"value": value}
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def load_run(config: str, overrides: Mapping[str, Any]) -> Config:
    """Load the config of a run, once for equal overrides."""
    return _load(config, json.dumps(overrides))


@cache
def _load(config: str, overrides: str) -> Config:
    return erjepa.configs.load(config, as_arguments(json.loads(overrides)))


def _check_runs(experiment: Experiment, dataset: str) -> None:
    """Raise ValueError if the recipe would reject the config of any method on a dataset."""
    for method in experiment.methods:
        config, overrides = run_of(experiment, dataset, method)
        for key in overrides:
            if (first := key.lstrip("~").partition(".")[0]) in _OWN:
                raise ValueError(f"{method} on {dataset}: {first} is set by the grid")
        try:
            cfg = load_run(config, overrides)
        except ValueError as error:
            raise ValueError(f"{method} on {dataset} ({config}): {error}") from None
        if experiment.score_on == "validation" and not cfg.validation.size:
            raise ValueError(
                f"score_on=validation: runs of {method} hold out no pairs; set "
                "overrides.validation.size"
            )
        if "ema" in experiment.score_weights and cfg.ema_decay is None:
            raise ValueError(
                f"score_weights={list(experiment.score_weights)}: runs of {method} average "
                "no weights; set overrides.ema_decay"
            )
        if experiment.score_on == "test" and cfg.eval_dataset is None:
            raise ValueError(
                f"{place_of(experiment, dataset)}: there is no eval_dataset to score; set one, "
                "or score_on=validation"
            )


def place_of(experiment: Experiment, dataset: str) -> str:
    """Return where an experiment names a dataset, for messages."""
    section = "datasets" if dataset in experiment.datasets else "also_scored"
    return f"{section}: {dataset}"
