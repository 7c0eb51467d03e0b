"""The schema of configs: type, bounds and default of every key.

The comments of ``llama3_2_1b_synth.yaml`` explain the keys. A key without a default is required.
The keys of ``replay`` are the fields of :class:`~erjepa.replay.ReplaySettings`; those of a
component are the parameters of its function or class.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from pydantic import BeforeValidator, Field

from erjepa.configs.component import Component, Components, Signature, components
from erjepa.replay import ReplaySettings
from erjepa.replay.settings import Count, NotNegative, Number, Positive

Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

# The keys that are components.
COMPONENTS = {
    "model": Signature(
        types={
            "lora_rank": Count,
            "lora_alpha": Positive,
            "lora_dropout": Annotated[NotNegative, Field(lt=1)],
        }
    ),
    "tokenizer": Signature(),
    "checkpointer": Signature(given=("output_dir",)),
    "dataset": Signature(positional=1, may_be_list=True),
    "eval_dataset": Signature(positional=1, may_be_list=True),
    "loss": Signature(
        types={
            "lm_weight": NotNegative,
            "jepa_weight": NotNegative,
            "temperature": Positive,
            "jepa_every": Count,
        }
    ),
    "optimizer": Signature(
        positional=1,
        types={
            "lr": NotNegative,
            "weight_decay": NotNegative,
            "betas": Annotated[
                list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2)
            ],
        },
    ),
    "lr_scheduler": Signature(
        positional=1,
        given=("num_training_steps",),
        types={
            "num_warmup_steps": Whole,
            "final_factor": Annotated[float, Field(ge=0, le=1)],
        },
    ),
    "metric_logger": Signature(),
    "profiler": Signature(),
}
PROFILER = "torchtune.training.setup_torch_profiler"


@dataclass(frozen=True)
class Stop:
    """Limits of a run, which ends at the first one that it reaches."""

    flops: Positive | None = None
    tokens: Count | None = None
    steps: Count | None = None
    patience: Count | None = None


def _none_of_zero(value: Any) -> Any:
    return None if value == 0 and value is not False else value


def _one_run(value: Any) -> Any:
    if isinstance(value, list):
        runs = ",".join(map(str, value))
        raise ValueError(
            f"continue_from=[{runs}] must be one run, from whose weights to start; to inherit the "
            f"memories of several, also set replay.init_from=[{runs}]"
        )
    return value


@dataclass(frozen=True)
class Validation:
    """Training pairs held out for validation."""

    size: Annotated[Count | Share | None, BeforeValidator(_none_of_zero)] = None
    seed: Whole = 0
    generate: Whole = 0

    def __post_init__(self) -> None:
        if isinstance(self.size, int) and self.generate > self.size:
            raise ValueError(
                f"validation.generate={self.generate} is more than validation.size="
                f"{self.size}, the number of held-out pairs"
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """The config of a run and of its evaluation.

    Args:
        source: merged values of the files and overrides, with interpolations unresolved. All
            other fields are keys of the config.
    """

    source: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    output_dir: str
    base_model: str = "<repository>"
    seed: Seed | None
    continue_from: Annotated[str | None, BeforeValidator(_one_run)] = None
    init_from: str | None = None
    base_adapters: list[str] | None = None
    orthogonal_weight: NotNegative = 0.0
    resume_from_checkpoint: bool | Literal["auto"] = False
    resume_changes: list[str] | None = None
    cudnn_deterministic_mode: Literal["default", "warn", "error", 0, 1, 2] | None = None

    model: Component
    tokenizer: Component
    checkpointer: Component

    save_every_n_steps: Count | None = 500
    keep_last_n: Count | None = 2
    keep_epochs: bool = False
    save_adapter_weights_only: bool = False
    checkpoint_at_flops: list[Number] | None = None
    keep_best: bool = False

    dataset: Components
    eval_dataset: Components | None = None
    shuffle: bool = True
    batch_size: Count
    max_seq_len: Count
    row_length: Count | None = None
    skip_too_long: bool = False
    num_workers: Whole = 0
    validation: Validation = Validation()
    eval_every_n_steps: Count | None = None

    loss: Component
    num_predictor_tokens: Whole = 1
    predictor_tokens: list[str] | None = None
    predictor_position: Literal["behind", "front"] = "behind"
    train_predictor_tokens: bool = True
    views: Literal["shared", "standalone", "spans", "patches"] = "shared"
    train_on_input: bool = False
    train_on_turns: Literal["last", "all"] = "last"
    train_end_of_turn: Literal["all", "new", "replay", "none"] = "all"
    replay: ReplaySettings = ReplaySettings(weight=0)

    epochs: Count
    max_steps_per_epoch: Count | None = None
    gradient_accumulation_steps: Count = 1
    clip_grad_norm: Positive | None = None
    optimizer: Component
    lr_scheduler: Component
    ema_decay: Annotated[Positive, Field(lt=1)] | None = None
    stop: Stop = Stop()

    device: str | None = None
    dtype: Literal["bf16", "fp32"] = "bf16"
    trainable_dtype: Literal["bf16", "fp32"] | None = "fp32"
    attention: Literal["auto", "flex", "dense", "causal"] = "auto"
    compile: bool = False
    enable_activation_checkpointing: bool = False
    enable_activation_offloading: bool = False
    custom_sharded_layers: list[str] | None = None
    fsdp_cpu_offload: bool = False
    fsdp_reshard_after_forward: bool | None = None
    step_timeout: Annotated[Number, Field(ge=10)] = 600.0

    task: str | None = None
    primary: str | None = None
    databases: str | None = None
    eval_split: Literal["test", "validation"] = "test"
    eval_earlier: bool = True
    max_forgetting: Annotated[NotNegative, Field(lt=1)] | None = None
    checkpoint_dir: str | list[str] | None = None
    checkpoint: Literal["last", "ema", "both"] = "last"
    base_only: bool = False
    merged: bool = False
    alignment: bool = False
    target_loss: bool = False
    max_new_tokens: Count = 128
    eval_batch_size: Count = 64

    metric_logger: Component
    log_every_n_steps: Count = 1
    log_replay_gradients_every_n_steps: Count | None = None
    log_collapse: bool = False
    log_example_errors: bool = False
    log_peak_memory_stats: bool = False
    profiler: Component = Component(PROFILER, {"enabled": False})

    def __post_init__(self) -> None:
        for key in ("dataset", "eval_dataset"):
            for part in components(getattr(self, key) or []):
                if part.path.startswith("torchtune."):
                    raise ValueError(
                        f"{key}={part.path} gives no pairs of source and target. "
                        "erjepa.datasets.paired_dataset reads the same files and hub "
                        "datasets"
                    )
        self._require_weights()
        if self.trainable_dtype not in ("fp32", self.dtype, None):
            raise ValueError(
                f"trainable_dtype={self.trainable_dtype}: trainable weights are held in "
                f"fp32, or in dtype ({self.dtype}) where trainable_dtype=null"
            )
        direction = self.loss.get("direction") or "source_to_target"
        if self.views in ("spans", "patches") and direction != "source_to_target":
            raise ValueError(
                f"loss.direction={direction}: views={self.views} compares parts of one "
                "text, not source and target; leave loss.direction out"
            )
        if self.row_length is not None and self.row_length < self.max_seq_len:
            raise ValueError(
                f"row_length={self.row_length} is shorter than max_seq_len="
                f"{self.max_seq_len}; a row must hold the longest pair."
            )
        budgets = self.checkpoint_at_flops or []
        if not all(a < b for a, b in pairwise([0, *budgets])):
            raise ValueError(
                f"checkpoint_at_flops must be an ascending list of FLOPs, got {budgets}"
            )
        if self.resume_changes and not self.resume_from_checkpoint:
            raise ValueError(
                f"resume_changes={self.resume_changes} needs "
                "resume_from_checkpoint=True"
            )
        if (share := self.replay.share) is not None:
            for key in ("log_replay_gradients_every_n_steps", "train_end_of_turn"):
                if (value := getattr(self, key)) not in (None, "all", "none"):
                    raise ValueError(
                        f"{key}={value} treats replayed and new pairs differently, but "
                        f"replay.share={share} trains both alike; set replay.budget instead "
                        f"of replay.share, or leave {key} out"
                    )
        if self.max_forgetting is not None and not self.eval_earlier:
            raise ValueError(
                f"max_forgetting={self.max_forgetting} is measured on the datasets of earlier "
                "runs; leave eval_earlier at True"
            )
        if self.validation.size is None:
            for key, value in (
                ("eval_every_n_steps", self.eval_every_n_steps),
                ("validation.generate", self.validation.generate),
                ("keep_best", self.keep_best),
                ("stop.patience", self.stop.patience),
                ("eval_split", self.eval_split),
            ):
                if value and value != "test":
                    raise ValueError(
                        f"{key}={value} needs pairs to validate on; set validation.size "
                        "to the number or fraction of training pairs to hold out"
                    )

    @property
    def drawn_seed(self) -> int:
        """The seed; the recipe must have drawn one if the key is null."""
        assert self.seed is not None
        return self.seed

    def as_dict(self) -> dict[str, Any]:
        """Return every key with its value as in YAML, interpolations resolved."""
        return {key: _plain(getattr(self, key)) for key in KEYS}

    def as_written(self) -> dict[str, Any]:
        """Return every key, with the order and the valid interpolations of ``source``."""
        source = OmegaConf.create(dict(self.source))
        resolved = OmegaConf.to_container(source, resolve=True)
        return _as_written(self.source, resolved, self.as_dict())

    def _require_weights(self) -> None:
        """Raise ``ValueError`` if weights of datasets are misplaced or incomplete."""
        for i, part in enumerate(components(self.eval_dataset or [])):
            if part.weight is not None:
                raise ValueError(
                    f"eval_dataset[{i}].weight={part.weight}: evaluation scores every "
                    "pair once, whatever its dataset; weights are for dataset"
                )
        parts = components(self.dataset)
        without = [i for i, part in enumerate(parts) if part.weight is None]
        if len(without) == len(parts):
            return
        if without:
            raise ValueError(
                f"dataset[{without[0]}] has no weight, and another of the list has one; give "
                "all of them a weight, or none"
            )
        if not self.shuffle:
            raise ValueError(
                "shuffle=False keeps the order of the files, from which weights draw; leave "
                "the weights out, or set shuffle=True"
            )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Component):
        return value.as_dict()
    return vars(value).copy() if is_dataclass(value) else value


def _as_written(written: Any, resolved: Any, value: Any) -> Any:
    """Return ``written``, with its interpolations, where it resolves to ``value``."""
    if isinstance(value, dict) and isinstance(written, Mapping):
        known = [key for key in written if key in value]
        return {
            key: _as_written(written[key], resolved[key], value[key]) for key in known
        } | {key: item for key, item in value.items() if key not in written}
    return written if value == resolved else value


KEYS = tuple(entry.name for entry in fields(Config) if entry.name != "source")
# The values, as in YAML, of the keys that are not required.
DEFAULTS = {
    entry.name: _plain(entry.default)
    for entry in fields(Config)
    if entry.default is not MISSING
}
