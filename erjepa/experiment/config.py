"""What an experiment compares: one YAML file, checked before anything runs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

import erjepa.configs
from erjepa.configs.schema import Run
from erjepa.utils.names import require_path_components, slug

# Overrides that only the grid knows, and turns into keys of the recipe.
TOKENS_OF, BATCH_SIZE_TIMES = "stop.tokens_of", "batch_size_times"
# Of score_weights, what the evaluation's key `checkpoint` has to be.
WEIGHTS = {("last",): "last", ("ema",): "ema", ("last", "ema"): "both"}
TRAINS_ON = "trains_on"
GRID_ONLY = (TOKENS_OF, BATCH_SIZE_TIMES, TRAINS_ON)
# Of a sequence of datasets, what a method's run on one of them trains on besides it.
SO_FAR, ALL, NOTHING = "so_far", "all", "nothing"
# Sections whose keys a file and the command line add to.
_ADDED = ("overrides", "evaluation", "budgets_of", "slurm")
# What the grid itself sets for each run.
_OWN = (
    "seed output_dir resume_from_checkpoint checkpoint_at_flops checkpoint_dir alignment "
    "eval_split checkpoint"
).split()


@dataclass(frozen=True)
class Experiment:
    """An experiment; the fields are the keys of its YAML file.

    Args:
        name (str): what it is called.
        output_dir (str): folder of its results.
        seeds (Sequence[int]): seeds of every method on every dataset.
        datasets (Mapping[str, Any]): short name to a config of the recipe, by name or path,
            or to ``{config: NAME}`` and overrides for this dataset.
        methods (Mapping[str, Mapping[str, Any]]): name, as tables show it, to overrides, in
            the order of tables. ``stop.tokens_of: METHOD`` ends a run at the tokens that
            METHOD's run took on the same dataset with the same seed;
            ``batch_size_times: N`` has N times the pairs in a step; ``trains_on`` see
            ``continual``.
        overrides (Mapping[str, Any]): for every run; those of the dataset and then those of
            the method win.
        budgets (Sequence[float] | None): FLOPs at which each run is scored; ``None``: at
            the end of every epoch.
        continual (bool): whether the datasets are a sequence. A method's run on one of them
            starts from the weights of its run on the one before, with the same seed, and
            where it replays from that one's memory, and is scored on every dataset.
            A method with ``trains_on: so_far`` trains on all datasets up to that one; with
            ``trains_on: all`` it has a single run, on all of them together, with the
            budgets of all; with ``trains_on: nothing`` it is the base model.
        match (str): ``flops``: each run stops at the last budget; ``epochs``: after its
            epochs.
        score_on (str): ``test``, or ``validation``: pairs held out of the training pairs,
            to choose settings by.
        score_weights (Sequence[str]): which weights of each checkpoint: ``last``, ``ema`` (the
            averaged ones, which need ``ema_decay``), or both.
        alignment (bool): whether predictions have the cosine of their pair.
        evaluation (Mapping[str, Any]): further overrides for the evaluation.
        report (Sequence[Any]): sections of the report.
        nproc_per_node (int): ranks of each run.
        devices (Sequence[int] | None): devices to share out, ``nproc_per_node`` for each of
            the runs side by side; without CUDA it only sets how many. ``None``: one by one.
        model (str | None): to name configs by, ``${model}_synth``.
        budgets_of (Mapping[str, Any]): to choose budgets from, ``${budgets_of.${model}}``.
        launcher (str): ``local``: runs on this machine; ``slurm``: tasks of a cluster.
        slurm (Mapping[str, Any]): what a task asks of Slurm, by the names of submitit's
            ``SlurmExecutor``: partition, time in minutes, gpus_per_node and so on.

    Raises:
        ValueError: if a value makes no sense.
    """

    name: str
    output_dir: str
    seeds: Sequence[int]
    datasets: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    budgets: Sequence[float] | None = None
    continual: bool = False
    match: str = "epochs"
    score_on: str = "test"
    score_weights: Sequence[str] = field(default_factory=lambda: ["last"])
    alignment: bool = False
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    report: Sequence[Any] = field(default_factory=list)
    nproc_per_node: int = 1
    devices: Sequence[int] | None = None
    model: str | None = None
    budgets_of: Mapping[str, Any] = field(default_factory=dict)
    launcher: str = "local"
    slurm: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("seeds", "datasets", "methods"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty")
        if any(type(seed) is not int or seed < 0 for seed in self.seeds):
            raise ValueError(f"seeds={list(self.seeds)}: expected whole numbers")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={list(self.seeds)} names one twice")
        require_path_components("datasets", {name: name for name in self.datasets})
        require_path_components("methods", {name: slug(name) for name in self.methods})
        if self.match not in ("flops", "epochs"):
            raise ValueError(f"match={self.match}: expected flops or epochs")
        if self.match == "flops" and not self.budgets:
            raise ValueError("match=flops needs budgets")
        if self.score_on not in ("test", "validation"):
            raise ValueError(f"score_on={self.score_on}: expected test or validation")
        if tuple(self.score_weights) not in WEIGHTS:
            raise ValueError(
                f"score_weights={self.score_weights}: expected [last], [ema] or [last, ema]"
            )
        if self.continual:
            if len(self.datasets) < 2:
                raise ValueError(
                    "continual=True needs a sequence of datasets, two or more"
                )
            if list(self.score_weights) != ["last"]:
                raise ValueError(
                    f"score_weights={list(self.score_weights)}: continual=True scores the "
                    "last weights, which the next dataset starts from; set it to [last]"
                )
            if self.score_on != "test":
                raise ValueError(
                    "score_on=validation: with continual=True every dataset is scored, and "
                    "only the newest holds pairs out; score_on must be test"
                )
        if self.launcher not in ("local", "slurm"):
            raise ValueError(f"launcher={self.launcher}: expected local or slurm")
        if self.launcher == "slurm" and self.devices is not None:
            raise ValueError(
                "devices are shared out by launcher=local; under Slurm each cell is a task, "
                "and slurm.gpus_per_node its devices"
            )
        n = self.nproc_per_node
        if self.devices is not None and (not self.devices or len(self.devices) % n):
            raise ValueError(
                f"devices={list(self.devices)} cannot be shared out {n} by {n} "
                "(nproc_per_node)"
            )
        for method, overrides in self.methods.items():
            times = overrides.get(BATCH_SIZE_TIMES, 1)
            if not isinstance(times, int) or times < 1:
                raise ValueError(
                    f"methods: {method}: {BATCH_SIZE_TIMES}={times}: expected a whole "
                    "number of at least 1"
                )
            trains_on = overrides.get(TRAINS_ON)
            if trains_on is not None and not self.continual:
                raise ValueError(
                    f"methods: {method}: {TRAINS_ON}={trains_on} needs a sequence of "
                    "datasets, continual=True"
                )
            if trains_on not in (None, SO_FAR, ALL, NOTHING):
                raise ValueError(
                    f"methods: {method}: {TRAINS_ON}={trains_on}: expected {SO_FAR}, {ALL} "
                    f"or {NOTHING}"
                )
            source = overrides.get(TOKENS_OF)
            if source is not None and TOKENS_OF in self.methods.get(
                source, {TOKENS_OF: None}
            ):
                raise ValueError(
                    f"methods: {method}: {TOKENS_OF}={source} must be a method that "
                    f"does not use {TOKENS_OF} itself"
                )
            if source is not None and self.methods[source].get(TRAINS_ON) in (
                ALL,
                NOTHING,
            ):
                raise ValueError(
                    f"methods: {method}: {TOKENS_OF}={source} must be a method that runs "
                    f"on every dataset, not one with {TRAINS_ON}={ALL} or {NOTHING}"
                )

    def as_dict(self) -> dict[str, Any]:
        """The experiment as its YAML would have it, all keys given."""
        return asdict(self)


def config_of(dataset: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The config that an entry of ``datasets`` names, and its overrides."""
    if isinstance(dataset, str):
        return dataset, {}
    if "config" not in dataset:
        raise ValueError(f"datasets: {dict(dataset)} names no config")
    return dataset["config"], {k: v for k, v in dataset.items() if k != "config"}


def load_experiment(name: str, arguments: Sequence[str] = ()) -> Experiment:
    """Read an experiment and check it against the configs of its runs.

    A file may start from another one, ``defaults: NAME``. Its ``overrides``, ``evaluation``,
    ``budgets_of`` and ``slurm`` add to those there, key by key; any other key replaces the
    whole key.

    Args:
        name (str): path, or name of a packaged experiment.
        arguments (Sequence[str]): ``key=value``, replacing a key; ``overrides.key=value``
            adds to a section.

    Returns:
        Experiment: with interpolations resolved.

    Raises:
        ValueError: naming the file and the key, if a key is unknown or a value makes no
            sense, in the experiment or in any of its runs.
        FileNotFoundError: if there is no such experiment, or a config it names.
    """
    erjepa.configs.prepare()
    path = erjepa.configs.config_path(name, "experiments")
    try:
        cfg = OmegaConf.create(_with_defaults(path))
        for argument in arguments:
            _set(cfg, argument)
        erjepa.configs.reject_unknown("", cfg, [f.name for f in fields(Experiment)])
        values = OmegaConf.to_container(cfg, resolve=True)
        values["methods"] = {
            method: overrides or {}
            for method, overrides in (values.get("methods") or {}).items()
        }
        experiment = Experiment(**values)
        for name in experiment.datasets:
            _check_runs(experiment, name)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return experiment


def _with_defaults(path: str) -> dict[str, Any]:
    cfg = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    defaults = cfg.pop("defaults", None)
    if defaults is None:
        return cfg
    beside = Path(path).parent / f"{defaults}.yaml"
    known = str(beside) if beside.is_file() else defaults
    parent = _with_defaults(erjepa.configs.config_path(known, "experiments"))
    added = {key: {**(parent.get(key) or {}), **(cfg.get(key) or {})} for key in _ADDED}
    return {**parent, **cfg, **{key: keys for key, keys in added.items() if keys}}


def _set(cfg: DictConfig, argument: str) -> None:
    key, separator, text = argument.partition("=")
    if not separator:
        raise ValueError(f"argument {argument!r}: expected key=value")
    section, _, rest = key.partition(".")
    names = [field.name for field in fields(Experiment)]
    of_runs = {field.name for field in fields(Run)} - {*names, *_OWN}
    if section in of_runs:
        raise ValueError(
            f"argument {argument!r}: {section} is a key of runs; say overrides.{argument}"
        )
    value = OmegaConf.from_dotlist([f"value={text}"])["value"]
    if not rest:
        cfg[section] = value
    elif section in (*_ADDED, "datasets"):
        cfg[section] = {**(cfg.get(section) or {}), rest: value}
    else:
        erjepa.configs.reject_unknown("", [section], names)
        raise ValueError(
            f"argument {argument!r}: {section} is replaced as a whole, {section}=..."
        )


def as_arguments(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides as the command line of the recipe takes them."""
    return [
        key
        if key.startswith("~")
        else f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in overrides.items()
    ]


def _check_runs(experiment: Experiment, dataset: str) -> None:
    """Reject what the recipe would reject in a run of any method on a dataset."""
    config, own = config_of(experiment.datasets[dataset])
    shared = {f"datasets: {dataset}": own, "overrides": experiment.overrides}
    for method, keys in experiment.methods.items():
        places = {f"methods: {method}": keys, **shared}
        cfg = _check_run(config, places)
        if "ema" in experiment.score_weights and cfg.ema_decay is None:
            raise ValueError(
                f"score_weights={list(experiment.score_weights)}: runs of {method} average "
                "no weights; set overrides.ema_decay"
            )
        if experiment.evaluation:
            _check_run(config, {"evaluation": experiment.evaluation, **places})


def _check_run(config: str, places: Mapping[str, Mapping[str, Any]]) -> DictConfig:
    """The config of a run with overrides of several places, of which earlier ones win."""
    overrides: dict[str, Any] = {}
    for place, keys in reversed(list(places.items())):
        overrides |= keys
        for key in keys:
            first = key.lstrip("~").partition(".")[0]
            if first in _OWN:
                raise ValueError(f"{place}: {first} is set by the grid")
    for key in GRID_ONLY:
        overrides.pop(key, None)
    try:
        cfg = erjepa.configs.load(config, as_arguments(overrides))
        return erjepa.configs.complete(cfg)
    except ValueError as error:
        said = [place for place, keys in places.items() if _names_any(error, keys)]
        raise ValueError(f"{(said or list(places))[0]}: {error}") from None


def _names_any(error: ValueError, keys: Iterable[str]) -> bool:
    return any(key.lstrip("~") in str(error) for key in keys)
