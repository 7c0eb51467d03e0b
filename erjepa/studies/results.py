"""Results of an experiment: ``results.jsonl``, one line per scored checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from erjepa.utils.checked import checked
from erjepa.utils.files import RESULTS
from erjepa.utils.jsonl import read_jsonl

Split = Literal["test", "validation"]
Weights = Literal["last", "ema"]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one scored checkpoint: a line of ``results.jsonl``."""

    cell: str  # name of the run, such as synth/llm-jepa/seed_82
    dataset: str  # scored dataset, by its name in the experiment
    method: str
    seed: int
    overrides: Mapping[str, Any]  # command-line overrides of the run
    checkpoint: str  # name of the checkpoint's folder
    # FLOPs at which the checkpoint was saved; None: at the end of an epoch or of the run
    budget: float | None
    steps: NonNegativeInt  # optimizer steps up to the checkpoint
    total_flops: float  # training compute up to the checkpoint
    total_tokens: NonNegativeInt  # tokens processed up to the checkpoint
    # Epochs up to the checkpoint; with max_steps_per_epoch, an epoch is that many steps
    epoch: float
    split: Split
    task: str
    accuracy: Share  # value of the metric `primary`
    primary: str
    readings: Mapping[str, Share]  # value of every metric of the task
    examples: NonNegativeInt  # number of scored examples
    predictions: str  # path of the predictions, relative to the experiment's folder
    log: str  # path of the run's log, relative to the experiment's folder
    train_seconds: float  # up to the checkpoint, without evaluation
    eval_seconds: float | None  # time to score the checkpoint
    weights: Weights = "last"
    # In a sequence of datasets: the dataset that the run trained on, after all earlier ones;
    # None: the experiment is not a sequence
    stage: str | None = None
    # Cross-entropy of the scored targets, in nats per token; None: not computed
    target_loss: float | None = None
    # Mean of each logged metric over the last steps before the checkpoint; empty without a log
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        """Folder of the run, relative to the experiment's folder."""
        return Path(self.log).parents[1]


def read_results(folder: Path) -> list[Result]:
    """Return the results in the folder of an experiment or of a cell, in the order of the file.

    An incomplete last line is skipped.

    Raises:
        ValueError: naming file, line and field, if a line is not a result.
    """
    path = folder / RESULTS
    if not path.exists():
        return []
    lines = read_jsonl(path, growing=True)
    return [checked(Result, row, where) for where, row in lines]
