"""Every key of a run: its type, bounds and default. llama3_2_1b_synth.yaml says what each does.

A key without a default must be in the config. The keys of ``replay`` are the fields of
:class:`~erjepa.replay.ReplaySettings`; those of a component are the parameters of what it names.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from erjepa.configs.files import COMPONENT
from erjepa.configs.reading import AtLeast, Component, Settings, read_section
from erjepa.replay import ReplaySettings

Count = Annotated[int, AtLeast(1)]
Whole = Annotated[int, AtLeast(0)]
Positive = Annotated[float, AtLeast(0, excluded=True)]
NotNegative = Annotated[float, AtLeast(0)]

AnyComponent = Annotated[Mapping, Component()]
Model = Annotated[
    Mapping,
    Component(
        arguments={
            "lora_rank": Count,
            "lora_alpha": Positive,
            "lora_dropout": Annotated[float, AtLeast(0, below=1)],
        }
    ),
]
Checkpointer = Annotated[Mapping, Component(given=("output_dir",))]
Dataset = Annotated[
    Mapping, Component(positional=1, may_be_list=True, listed={"weight": Positive})
]
Loss = Annotated[
    Mapping,
    Component(
        arguments={
            "lm_weight": NotNegative,
            "jepa_weight": NotNegative,
            "temperature": Positive,
            "jepa_every": Count,
            "sigreg_weight": NotNegative,
            "sigreg_slices": Annotated[int, AtLeast(1, below=100_000)],
            "variance_weight": NotNegative,
            "covariance_weight": NotNegative,
        }
    ),
]
Optimizer = Annotated[
    Mapping,
    Component(positional=1, arguments={"lr": NotNegative, "weight_decay": NotNegative}),
]
LRScheduler = Annotated[Mapping, Component(positional=1, given=("num_training_steps",))]
Profiler = Annotated[
    Mapping, Component(default="torchtune.training.setup_torch_profiler")
]
Replay = Annotated[Mapping, Settings(ReplaySettings, absent={"weight": 0})]


@dataclass(frozen=True)
class Stop:
    """Where a run ends: at the first of these reached."""

    flops: Positive | None = None
    tokens: Count | None = None
    steps: Count | None = None
    patience: Count | None = None


@dataclass(frozen=True)
class Validation:
    """Training pairs held out."""

    size: Count | None = None
    seed: Whole = 0
    generate: Whole = 0

    def __post_init__(self) -> None:
        if self.size is not None and self.generate > self.size:
            raise ValueError(
                f"validation.generate={self.generate} is more than validation.size="
                f"{self.size}, the pairs that there are to answer"
            )


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, its evaluation included."""

    output_dir: str
    base_model: str = "<repository>"

    model: Model
    tokenizer: AnyComponent
    checkpointer: Checkpointer
    continue_from: str | None = None
    init_from: str | None = None
    resume_from_checkpoint: bool | Literal["auto"] = False
    resume_changes: list[str] | None = None
    save_adapter_weights_only: bool = False
    save_every_n_steps: Count | None = 500
    keep_last_n: Count | None = 2
    checkpoint_at_flops: list[float] | None = None

    dataset: Dataset
    eval_dataset: Dataset | None = None
    validation: Validation | None = None
    eval_every_n_steps: Count | None = None
    keep_best: bool = False
    seed: Annotated[int, AtLeast(0, below=2**32)] | None
    shuffle: bool = True
    batch_size: Count
    max_seq_len: Count
    row_length: Count | None = None
    skip_too_long: bool = False
    num_workers: Whole = 0

    loss: Loss
    num_predictor_tokens: Whole = 1
    predictor_tokens: list[str] | None = None
    predictor_position: Literal["behind", "front"] = "behind"
    train_predictor_tokens: bool = True
    views: Literal["shared", "standalone", "spans", "patches"] = "shared"
    train_on_input: bool = False
    train_end_of_turn: Literal["all", "new", "replay", "none"] = "all"
    replay: Replay | None = None

    epochs: Count
    max_steps_per_epoch: Count | None = None
    gradient_accumulation_steps: Count = 1
    clip_grad_norm: Positive | None = None
    optimizer: Optimizer
    lr_scheduler: LRScheduler
    ema_decay: Annotated[float, AtLeast(0, excluded=True, below=1)] | None = None
    stop: Stop | None = None

    device: str | None = None
    dtype: Literal["bf16", "fp32"] = "bf16"
    trainable_dtype: Literal["bf16", "fp32"] | None = "fp32"
    attention: Literal["auto", "flex", "dense"] = "auto"
    compile: bool = False
    enable_activation_checkpointing: bool = False
    enable_activation_offloading: bool = False
    custom_sharded_layers: list[str] | None = None
    fsdp_cpu_offload: bool = False
    fsdp_reshard_after_forward: bool | None = None
    step_timeout: Annotated[float, AtLeast(10)] = 600.0
    cudnn_deterministic_mode: Literal["default", "warn", "error", 0, 1, 2] | None = None

    task: str | None = None
    databases: str | None = None
    eval_split: Literal["test", "validation"] = "test"
    eval_earlier: bool = True
    max_forgetting: Annotated[float, AtLeast(0, below=1)] | None = None
    checkpoint_dir: str | list[str] | None = None
    checkpoint: Literal["last", "ema", "both"] = "last"
    base_only: bool = False
    merged: bool = False
    alignment: bool = False
    max_new_tokens: Count = 128
    eval_batch_size: Count = 64

    metric_logger: AnyComponent
    log_every_n_steps: Count = 1
    log_replay_gradients_every_n_steps: Count | None = None
    log_collapse: bool = False
    log_example_errors: bool = False
    log_peak_memory_stats: bool = False
    profiler: Profiler | None = None

    def __post_init__(self) -> None:
        for key in ("dataset", "eval_dataset"):
            parts = getattr(self, key) or []
            for part in parts if isinstance(parts, list) else [parts]:
                if part[COMPONENT].startswith("torchtune."):
                    raise ValueError(
                        f"{key}={part[COMPONENT]} gives no pairs of source and target. "
                        "erjepa.datasets.paired_dataset reads the same files and hub "
                        "datasets"
                    )
        self._require_weights()
        if self.trainable_dtype not in ("fp32", self.dtype, None):
            raise ValueError(
                f"trainable_dtype={self.trainable_dtype}: what is trained is held in "
                f"fp32, or in dtype ({self.dtype}) where trainable_dtype=null"
            )
        direction = self.loss.get("direction", "source_to_target")
        if self.views in ("spans", "patches") and direction != "source_to_target":
            raise ValueError(
                f"loss.direction={direction}: views={self.views} compares parts of one "
                "path, which are no source and target; leave the direction out"
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
                f"resume_changes={self.resume_changes} is for a run that is gone on with, "
                "resume_from_checkpoint=True"
            )
        if (share := (self.replay or {}).get("share")) is not None:
            for key in ("log_replay_gradients_every_n_steps", "train_end_of_turn"):
                if (value := getattr(self, key)) not in (None, "all", "none"):
                    raise ValueError(
                        f"{key}={value} tells replayed pairs from new ones; replay.share="
                        f"{share} trains both alike. Set replay.budget instead, or leave "
                        f"{key} out"
                    )
        # Sections come as they are read: keys and values.
        validation = cast(dict[str, Any], self.validation)
        stop = cast(dict[str, Any], self.stop)
        if validation["size"] is None:
            for key, value in (
                ("eval_every_n_steps", self.eval_every_n_steps),
                ("validation.generate", validation["generate"]),
                ("keep_best", self.keep_best),
                ("stop.patience", stop["patience"]),
            ):
                if value:
                    raise ValueError(
                        f"{key}={value} needs pairs to validate on; set validation.size "
                        "to how many of the training pairs to hold out"
                    )

    def _require_weights(self) -> None:
        """Of the datasets in a list all have a weight, or none."""
        for i, part in enumerate(_listed(self.eval_dataset)):
            if "weight" in part:
                raise ValueError(
                    f"eval_dataset[{i}].weight={part['weight']}: evaluation scores every "
                    "pair once, whatever its dataset; weights are for dataset"
                )
        parts = _listed(self.dataset)
        without = [i for i, part in enumerate(parts) if "weight" not in part]
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


def _listed(section: Any) -> list[dict[str, Any]]:
    return section if isinstance(section, list) else []


# What other projects, and the paper, call a key; and keys of a section without its name.
SYNONYMS = {
    **{
        key: f"replay.{key}"
        for key in inspect.signature(ReplaySettings).parameters
        if key not in inspect.signature(Run).parameters
    },
    **{key: f"stop.{key}" for key in inspect.signature(Stop).parameters},
    **dict.fromkeys(("lr", "learning_rate"), "optimizer.lr"),
    "weight_decay": "optimizer.weight_decay",
    **dict.fromkeys(
        ("warmup_steps", "num_warmup_steps"), "lr_scheduler.num_warmup_steps"
    ),
    **dict.fromkeys(("rank", "r", "lora_r", "lora_rank"), "model.lora_rank"),
    **dict.fromkeys(("alpha", "lora_alpha"), "model.lora_alpha"),
    **dict.fromkeys(("dropout", "lora_dropout"), "model.lora_dropout"),
    **dict.fromkeys(("num_epochs", "num_train_epochs"), "epochs"),
    "max_steps": "stop.steps",
    "early_stopping_patience": "stop.patience",
    **dict.fromkeys(("micro_batch_size", "per_device_train_batch_size"), "batch_size"),
    "grad_accum": "gradient_accumulation_steps",
    **dict.fromkeys(("max_grad_norm", "grad_clip"), "clip_grad_norm"),
    **dict.fromkeys(("precision", "torch_dtype"), "dtype"),
    **dict.fromkeys(("max_length", "max_seq_length"), "max_seq_len"),
    "save_steps": "save_every_n_steps",
    **dict.fromkeys(("save_total_limit", "keep_last_n_checkpoints"), "keep_last_n"),
    "eval_steps": "eval_every_n_steps",
    "logging_steps": "log_every_n_steps",
    "gradient_checkpointing": "enable_activation_checkpointing",
    "resume": "resume_from_checkpoint",
    **dict.fromkeys(("ema", "averaging_decay"), "ema_decay"),
    **dict.fromkeys(("gamma", "lm_weight"), "loss.lm_weight"),
    **dict.fromkeys(("lambda", "lbd", "jepa_weight"), "loss.jepa_weight"),
    **dict.fromkeys(("temperature", "tau"), "loss.temperature"),
    "distance": "loss.distance",
    "jepa_every": "loss.jepa_every",
    "direction": "loss.direction",
    "front_pred": "predictor_position",
    "reverse_pred": "loss.direction",
    "jepa_ratio": "loss.jepa_every",
    "k": "num_predictor_tokens",
    **dict.fromkeys(("beta", "replay_weight"), "replay.weight"),
    **dict.fromkeys(("R", "replay_budget"), "replay.budget"),
    "kappa": "replay.neighbors",
    **dict.fromkeys(("M", "memory_size"), "replay.capacity"),
    "eta": "replay.score_update_rate",
    "S": "replay.address_dim",
    "K": "replay.address_top_k",
}


def complete(cfg: DictConfig) -> DictConfig:
    """A config with every key, checked before anything is loaded.

    Args:
        cfg (DictConfig): the config after overrides.

    Returns:
        DictConfig: the same, keys that it lacks filled with their defaults and whole floats
        as whole numbers, and what ``continue_from`` stands for; interpolations stay as they
        are written.

    Raises:
        ValueError: for the first key that is unknown, missing or has a value that makes no
            sense; it names the key, the value and what is allowed.
    """
    try:
        resolved = OmegaConf.to_container(cfg, resolve=True)
    except (OmegaConfBaseException, ImportError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    read = read_section("", Run, resolved, SYNONYMS)
    if read["continue_from"] is not None:
        _continue(read)
    written = OmegaConf.to_container(cfg, resolve=False)
    return OmegaConf.create(_as_written(written, resolved, read))


def _continue(cfg: dict[str, Any]) -> None:
    """Set the keys that ``continue_from`` stands for: nothing else reads it."""
    start, replay = cfg["continue_from"], cfg["replay"]
    sections = [("", cfg)] + [("replay.", replay)] * bool(replay["weight"])
    for prefix, section in sections:
        given = section["init_from"]
        if isinstance(given, list) and start in given:
            continue  # other memories merge with its own
        if given not in (None, start):
            raise ValueError(
                f"continue_from={start} sets {prefix}init_from, which is "
                f"{given}; leave one of the two out"
            )
        section["init_from"] = start
    ReplaySettings(**replay)


def _as_written(written: Any, resolved: Any, read: Any) -> Any:
    """What was read; where that is what was given, the way in which it is written."""
    if isinstance(read, dict) and isinstance(written, dict):
        return {
            key: _as_written(written[key], resolved[key], value)
            if key in written
            else value
            for key, value in read.items()
        }
    return written if read == resolved and type(read) is type(resolved) else read
