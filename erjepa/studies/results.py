"""The results of an experiment, a line for each scored checkpoint."""

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
    """What an experiment keeps of a scored checkpoint: a line of ``results.jsonl``."""

    cell: str  # the run, such as synth/llm-jepa/seed_82
    dataset: str  # that it was scored on, as the experiment calls it
    method: str
    seed: int
    overrides: Mapping[str, Any]  # what the run sets on the command line
    checkpoint: str  # name of its folder
    # FLOPs that it was saved at; None: at the end of an epoch or of the run
    budget: float | None
    steps: Whole  # optimizer steps up to it
    total_flops: float  # training compute up to it
    total_tokens: Whole  # processed up to it
    epoch: float  # passes over the training pairs up to it
    split: Split
    task: str
    accuracy: Share  # by the metric `primary`
    primary: str
    readings: Mapping[str, Share]  # every metric of the answers
    examples: Whole  # how many were scored
    predictions: str  # file in the experiment's folder
    log: str  # of the run, in the experiment's folder
    train_seconds: float  # up to it, without evaluation
    eval_seconds: float | None  # scoring it
    weights: Weights = "last"
    # Lines of the run: one for each checkpoint, kind of weights and dataset; None: an older
    # line does not say
    of: Annotated[int, Field(ge=1)] | None = None
    # In a sequence of datasets the one that the run was trained on, after those before it;
    # None: the experiment is no sequence
    stage: str | None = None
    # Cross-entropy of the scored targets, nats a token; None: it was not asked for
    target_loss: float | None = None
    # Means of what the run logged in the last steps up to it; empty without a log file
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        """Folder of the run, in the experiment's folder."""
        return Path(self.log).parents[1]


def read_results(output_dir: Path) -> list[Result]:
    """The scored checkpoints of an experiment, in order of completion.

    Args:
        output_dir: its folder. A last line that is being written is left out.

    Raises:
        ValueError: naming file, line and field, if a line is not a result.
    """
    return [result for result, _ in _read(output_dir / RESULTS)]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results as they are written, each checked to be a result."""
    return [row for _, row in _read(path)]


def _read(path: Path) -> Iterator[tuple[Result, dict[str, Any]]]:
    if path.exists():
        for where, row in read_jsonl(path, growing=True):
            yield checked(Result, row, where), row


def whole_cells(results: Iterable[Result]) -> set[str]:
    """The runs all of whose lines are there, also after a file was cut off or edited."""
    found: dict[str, dict[tuple[str, str, str], int]] = {}
    for result in results:
        line = result.checkpoint, result.weights, result.dataset
        found.setdefault(result.cell, {})[line] = result.of or 0
    return {cell for cell, lines in found.items() if len(lines) >= max(lines.values())}


def add_results(output_dir: Path, results: Iterable[Result]) -> None:
    """Add scored checkpoints to an experiment's, all of them or, if killed, none."""
    path = output_dir / RESULTS
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # not the half of a line
    write_whole(path, whole + to_jsonl(map(asdict, results)))
