"""The config of an experiment: the schema of its YAML file and of ``experiment.json``."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from erjepa.studies.names import require_path_components, slug
from erjepa.studies.results import Split, Weights
from erjepa.utils.checked import checked
from erjepa.utils.files import EXPERIMENT
from erjepa.utils.jsonl import parse_json

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
Order = Annotated[list[Text], AtLeastOne, AfterValidator(_distinct)]


@dataclass(frozen=True)
class Controls:
    """Keys of a method that the grid handles itself and does not pass to the recipe."""

    # The method whose number of tokens ends a run
    tokens_of: Annotated[str | None, Field(alias="stop.tokens_of")] = None
    batch_size_times: Count | None = None  # factor on the pairs per step
    # The datasets of a sequence to train on, see :class:`Experiment`
    trains_on: Literal["so_far", "all", "nothing"] | None = None
    new_adapters: bool = False  # whether each stage trains its own adapter


CONTROLS = ("stop.tokens_of", "batch_size_times", "trains_on", "new_adapters")


@dataclass(frozen=True)
class Experiment:
    """An experiment; its fields are the keys of its YAML file.

    Args:
        output_dir: folder of the results.
        seeds: seeds of every method on every dataset.
        datasets: maps a short name to a config of the recipe, by name or path, or to
            ``{config: NAME, ...}`` with overrides for this dataset.
        methods: maps a method's name to its overrides, in the order of the tables.
            ``stop.tokens_of: METHOD`` ends a run after the number of tokens that METHOD's run took
            on the same dataset with the same seed; ``batch_size_times: N`` multiplies the pairs
            per step by N; for ``trains_on`` and ``new_adapters`` see ``continual``.
        overrides: overrides of every run; those of a dataset win over these, those of a method
            over both.
        budgets: FLOPs at which each run is scored, ascending; ``None``: score at the end of every
            epoch.
        continual: whether the datasets are a sequence. A method's run on a dataset then starts
            from the weights of its run on the previous dataset with the same seed (and from that
            run's memory if it replays), and is scored on every dataset. With
            ``trains_on: so_far`` it trains on all datasets up to the current one; with
            ``trains_on: all`` the method has one run, on all datasets together, with their total
            budget; with ``trains_on: nothing`` it is the base model. With
            ``new_adapters: True`` the adapters of earlier stages are merged into the base model
            and each run trains a new adapter.
        also_scored: further datasets on which each run of a sequence is scored, in the form of
            ``datasets``; no run trains on them.
        match: ``flops``: each run stops at the last budget; ``epochs``: after its epochs.
        score_on: ``test``, or ``validation``, pairs held out of the training pairs, for choosing
            settings.
        score_weights: the weights to score: ``last``, ``ema`` (averaged weights, which need
            ``ema_decay``), or both. In a sequence the averages continue from run to run; the
            next run starts from the last weights.
        alignment: whether predictions include the cosine of their pair.
        evaluation: overrides of the evaluation only.
        report: sections of the report; ``None``: the default sections.
        nproc_per_node: ranks of each run.
        devices: devices for ``launcher: local``. Each of the parallel runs gets
            ``nproc_per_node`` of them; without CUDA only their number matters. ``None``: one run
            at a time.
        model: a value for the names of configs, ``${model}_synth``.
        data: a folder for the names of files, ``${data}/mnli``.
        budgets_of: budgets to choose from, ``${budgets_of.${model}}``.
        launcher: ``local``: runs on this machine; ``slurm``: tasks of a cluster.
        slurm: what a task requests from Slurm, by the names of submitit's ``SlurmExecutor``:
            partition, time in minutes, gpus_per_node and so on.

    Raises:
        ValueError: naming the key, if values contradict each other.
    """

    name: Text
    output_dir: Text
    seeds: Annotated[Sequence[Seed], AtLeastOne, AfterValidator(_distinct)]
    datasets: Annotated[Mapping[str, Dataset], AtLeastOne]
    methods: Annotated[Mapping[str, Keys], AtLeastOne]
    overrides: Keys = field(default_factory=dict)
    budgets: Annotated[Sequence[Flops], AfterValidator(_ascending)] | None = None
    continual: bool = False
    also_scored: Mapping[str, Dataset] = field(default_factory=dict)
    match: Literal["flops", "epochs"] = "epochs"
    score_on: Split = "test"
    score_weights: Sequence[Weights] = field(default_factory=lambda: ["last"])
    alignment: bool = False
    evaluation: Keys = field(default_factory=dict)
    report: Sequence[str | Mapping[str, Any]] | None = None
    nproc_per_node: Count = 1
    devices: (
        Annotated[Sequence[Device], AtLeastOne, AfterValidator(_distinct)] | None
    ) = None
    model: str | None = None
    data: str | None = None
    budgets_of: Keys = field(default_factory=dict)
    launcher: Literal["local", "slurm"] = "local"
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
        require_path_components("methods", {name: slug(name) for name in self.methods})
        if self.match == "flops" and not self.budgets:
            raise ValueError("match=flops needs budgets")
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
        if self.launcher == "local" and len(self.devices or ()) % n:
            raise ValueError(
                f"devices={self.devices} cannot be split into groups of {n} (nproc_per_node)"
            )
        for method in self.methods:
            self._check_controls(method)

    def _check_controls(self, method: str) -> None:
        controls = self.controls(method)
        for key in ("trains_on", "new_adapters"):
            if (value := getattr(controls, key)) and not self.continual:
                raise ValueError(
                    f"methods: {method}: {key}={value} needs a sequence of datasets, "
                    "continual=True"
                )
        if controls.tokens_of is None:
            return
        error = (
            f"methods: {method}: stop.tokens_of={controls.tokens_of} must be a method"
        )
        is_method = controls.tokens_of in self.methods
        source = self.controls(controls.tokens_of) if is_method else None
        if source is None or source.tokens_of:
            raise ValueError(f"{error} that does not use stop.tokens_of itself")
        if source.trains_on in ("all", "nothing"):
            raise ValueError(
                f"{error} that runs on every dataset, not one with trains_on=all or nothing"
            )

    def controls(self, method: str) -> Controls:
        """Return the keys of a method that the grid handles itself."""
        return checked(Controls, self.methods[method], f"methods: {method}")

    def as_dict(self) -> dict[str, Any]:
        """Return the experiment as a dictionary of its YAML keys, defaults included."""
        return asdict(self)


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
    return checked(Record, parse_json(path.read_bytes(), str(path)), str(path))
