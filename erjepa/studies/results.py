"""Results of an experiment: ``results.jsonl``, one line per scored checkpoint."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from erjepa.utils.checked import checked
from erjepa.utils.files import RESULTS, write_whole
from erjepa.utils.jsonl import read_jsonl, to_jsonl

Split = Literal["test", "validation"]
Weights = Literal["last", "ema"]
Whole = Annotated[int, Field(ge=0)]
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
    steps: Whole  # optimizer steps up to the checkpoint
    total_flops: float  # training compute up to the checkpoint
    total_tokens: Whole  # tokens processed up to the checkpoint
    epoch: float  # passes over the training pairs up to the checkpoint
    split: Split
    task: str
    accuracy: Share  # value of the metric `primary`
    primary: str
    readings: Mapping[str, Share]  # value of every metric of the task
    examples: Whole  # number of scored examples
    predictions: str  # path of the predictions, relative to the experiment's folder
    log: str  # path of the run's log, relative to the experiment's folder
    train_seconds: float  # up to the checkpoint, without evaluation
    eval_seconds: float | None  # time to score the checkpoint
    weights: Weights = "last"
    # Number of lines of the run: checkpoints x kinds of weights x datasets; None in lines of
    # older versions
    of: Annotated[int, Field(ge=1)] | None = None
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


def read_results(output_dir: Path) -> list[Result]:
    """Return the results in an experiment's folder, in the order of the file.

    An incomplete last line is skipped.

    Raises:
        ValueError: naming file, line and field, if a line is not a result.
    """
    return [result for result, _ in _read(output_dir / RESULTS)]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a results file as dictionaries, each checked to be a result."""
    return [row for _, row in _read(path)]


def _read(path: Path) -> Iterator[tuple[Result, dict[str, Any]]]:
    if path.exists():
        for where, row in read_jsonl(path, growing=True):
            yield checked(Result, row, where), row


def whole_cells(results: Iterable[Result]) -> set[str]:
    """Return the cells whose lines are complete; a truncated or edited file can lack some."""
    found: dict[str, dict[tuple[str, str, str], int]] = {}
    for result in results:
        line = result.checkpoint, result.weights, result.dataset
        found.setdefault(result.cell, {})[line] = result.of or 0
    return {cell for cell, lines in found.items() if len(lines) >= max(lines.values())}


def add_results(output_dir: Path, results: Iterable[Result]) -> None:
    """Append results to an experiment's ``results.jsonl``, atomically."""
    path = output_dir / RESULTS
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # drops an incomplete last line
    write_whole(path, whole + to_jsonl(map(asdict, results)))
