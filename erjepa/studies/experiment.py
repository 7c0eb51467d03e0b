"""The config of an experiment: the schema of its YAML file and of ``experiment.json``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from erjepa.studies.names import require_path_components, slug
from erjepa.studies.results import Split, Weights
from erjepa.utils.checked import checked, read_json
from erjepa.utils.files import EXPERIMENT

# Value of score_weights -> value of the evaluation's key `checkpoint`.
WEIGHTS = {("last",): "last", ("ema",): "ema", ("last", "ema"): "both"}


def _section(keys: Any) -> Any:
    return {} if keys is None else keys  # YAML loads an empty section as None


def _dataset(entry: Any) -> Any:
    config = entry.get("config") if isinstance(entry, Mapping) else entry
    if not isinstance(config, str):
        raise ValueError(f"expected a config, or {{config: NAME, ...}}, got {entry!r}")
    return entry


def _distinct(values: Sequence[Any]) -> Sequence[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"{list(values)} has duplicates")
    return values


def _ascending(values: Sequence[float]) -> Sequence[float]:
    if list(values) != sorted(set(values)):
        raise ValueError(f"expected ascending numbers, got {list(values)}")
    return values


Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Device = Annotated[int, Field(ge=0)]
Flops = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Keys = Annotated[Mapping[str, Any], BeforeValidator(_section)]
Dataset = Annotated[str | Mapping[str, Any], PlainValidator(_dataset)]
AtLeastOne = Field(min_length=1)
Datasets = Annotated[dict[str, Dataset], AtLeastOne]
Order = Annotated[list[Text], AtLeastOne, AfterValidator(_distinct)]


@dataclass(frozen=True)
class Controls:
    """Keys of a method that the grid handles itself and does not pass to the recipe."""

    # The method whose number of tokens, on the same dataset with the same seed, ends a run
    tokens_of: Annotated[str | None, Field(alias="stop.tokens_of")] = None
    batch_size_times: Count | None = None  # factor on the pairs per step
    # In a sequence, the datasets to train on, if not that of the stage: all up to it; all in
    # one run, with their total budget; or none, for the base model
    trains_on: Literal["so_far", "all", "nothing"] | None = None
    # In a sequence, whether each run trains a new adapter, with the earlier ones merged
    new_adapters: bool = False

    @property
    def has_stages(self) -> bool:
        """Whether there is a run on each dataset, not one for all or none of them."""
        return self.trains_on in (None, "so_far")


CONTROLS = ("stop.tokens_of", "batch_size_times", "trains_on", "new_adapters")


@dataclass(frozen=True)
class Experiment:
    """An experiment; its fields are the keys of its YAML file.

    Raises:
        ValueError: naming the key, if values contradict each other.
    """

    name: Text
    output_dir: Text
    seeds: Annotated[Sequence[Seed], AtLeastOne, AfterValidator(_distinct)]
    # Short name -> config of the recipe, or {config: NAME, ...} with overrides
    datasets: Datasets
    # Name -> overrides, and keys of Controls, in the order of the tables
    methods: Annotated[Mapping[str, Keys], AtLeastOne]
    # Of every run; those of a dataset win over these, those of a method over both
    overrides: Keys = field(default_factory=dict)
    # FLOPs at which each run is scored, and at the last of which it ends; None: it ends after its
    # epochs, and is scored at the end of each
    budgets: Annotated[Sequence[Flops], AfterValidator(_ascending)] | None = None
    # Whether the datasets are a sequence: a run starts from the weights of the method's run on
    # the previous dataset (and from its memory if it replays), and is scored on every dataset
    continual: bool = False
    # In a sequence, what the runs before the last are scored on: all datasets, or their own
    score_stages: Literal["all", "own"] = "all"
    # Further datasets on which runs of a sequence are scored, in the form of ``datasets``
    also_scored: Mapping[str, Dataset] = field(default_factory=dict)
    score_on: Split = "test"  # validation: pairs held out of the training pairs
    # In a sequence the averages continue from run to run; a run starts from the last weights
    score_weights: Sequence[Weights] = field(default_factory=lambda: ["last"])
    # Sections of the report; None: the default sections
    report: Sequence[str | Mapping[str, Any]] | None = None
    nproc_per_node: Count = 1  # ranks of each run
    # For parallel local runs, each on nproc_per_node of them; None: one run at a time. Runs share
    # a device that is listed several times. Without CUDA only their number matters
    devices: Annotated[Sequence[Device], AtLeastOne] | None = None
    # Values for other keys: ${model}_synth, ${data}/mnli, ${budgets_of.${model}}
    model: str | None = None
    data: str | None = None
    budgets_of: Keys = field(default_factory=dict)
    launcher: Literal["local", "slurm"] = "local"
    # What a task requests from Slurm, by the names of submitit's ``SlurmExecutor``
    slurm: Keys = field(default_factory=dict)

    def __post_init__(self) -> None:
        scored = [*self.datasets, *self.also_scored]
        require_path_components("datasets", {name: name for name in scored})
        if len({*scored}) < len(scored):
            raise ValueError(
                "also_scored names one of datasets, which are scored anyway"
            )
        if self.also_scored and not self.continual:
            raise ValueError("also_scored needs a sequence of datasets, continual=True")
        if self.score_stages == "own" and not self.continual:
            raise ValueError(
                "score_stages=own needs a sequence of datasets, continual=True"
            )
        require_path_components("methods", {name: slug(name) for name in self.methods})
        if tuple(self.score_weights) not in WEIGHTS:
            raise ValueError(
                f"score_weights={self.score_weights}: expected [last], [ema] or [last, ema]"
            )
        if self.continual:
            if len(self.datasets) < 2:
                raise ValueError(
                    "continual=True needs a sequence of datasets, two or more"
                )
            if self.score_on != "test":
                raise ValueError(
                    "score_on=validation: with continual=True every dataset is scored, and "
                    "only the newest holds pairs out; score_on must be test"
                )
        n = self.nproc_per_node
        incomplete = any(len({*group}) < n for group in self.device_groups)
        if self.launcher == "local" and incomplete:
            raise ValueError(
                f"devices={self.devices} cannot be split into groups of {n} distinct devices "
                "(nproc_per_node)"
            )
        for method in self.methods:
            self._check_controls(method)

    @property
    def device_groups(self) -> list[Sequence[int]]:
        """The devices of each parallel run; empty if ``devices`` is None."""
        n, devices = self.nproc_per_node, self.devices or ()
        return [devices[i : i + n] for i in range(0, len(devices), n)]

    def _check_controls(self, method: str) -> None:
        controls = self.controls(method)
        for key in ("trains_on", "new_adapters"):
            if (value := getattr(controls, key)) and not self.continual:
                raise ValueError(
                    f"methods: {method}: {key}={value} needs a sequence of datasets, "
                    "continual=True"
                )
        source = controls.tokens_of
        if source is None:
            return
        error = f"methods: {method}: stop.tokens_of={source} must be a method"
        if source not in self.methods or self.controls(source).tokens_of:
            raise ValueError(f"{error} that does not use stop.tokens_of itself")
        if not self.controls(source).has_stages:
            raise ValueError(
                f"{error} that runs on every dataset, not one with trains_on=all or nothing"
            )

    def dataset(self, name: str) -> dict[str, Any]:
        """Return the entry of a dataset: ``config``, of the recipe, and overrides."""
        entry = {**self.datasets, **self.also_scored}[name]
        return {"config": entry} if isinstance(entry, str) else {**entry}

    def controls(self, method: str) -> Controls:
        return checked(Controls, self.methods[method], f"methods: {method}")


@dataclass(frozen=True)
class Hardware:
    """Processor, cores and GPUs of the machine on which a grid was started."""

    cpu: str = "unknown"
    cores: int | None = None
    gpus: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Record:
    """The content of ``experiment.json``: the experiment as last run, versions and hardware."""

    # Versions of Python and of packages
    versions: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None  # Git revision of the source tree, if run from one
    hardware: Hardware = field(default_factory=Hardware)
    config: Experiment
    # Content of the recipe configs of its datasets, by name or path, when it was started
    recipe_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Digests of the local files of its datasets, by path, when it was started
    data_files: Mapping[str, str] = field(default_factory=dict)


def read_record(output_dir: Path) -> Record:
    """Load ``experiment.json`` from an experiment's folder.

    Raises:
        FileNotFoundError: if no experiment ran there.
        ValueError: naming the file and the key, if the file is damaged.
    """
    path = output_dir / EXPERIMENT
    if not path.is_file():
        raise FileNotFoundError(
            f"{output_dir} is not the output of an experiment: it has no {EXPERIMENT}"
        )
    return read_json(Record, path)
