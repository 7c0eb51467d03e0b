"""The scores of an evaluation, as ``summary.json`` stores them."""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field, model_validator

from erjepa.utils.checked import read_json
from erjepa.utils.files import CONFIG, SUMMARY, config_of_run


class Reading(BaseModel, frozen=True):
    """How many answers are right by one metric.

    ``share`` is the fraction of right answers, and ``interval`` its 95% interval. An
    ``undecided`` answer counts as not right.
    """

    share: float
    right: int
    undecided: int = 0
    examples: int
    interval: tuple[float, float]


class ReadingOfOrigin(Reading, frozen=True):
    """The primary metric on the pairs of the dataset ``origin``."""

    origin: str


class Change(BaseModel, frozen=True):
    """Comparison of an evaluation with that of an earlier ``checkpoint`` on the same examples.

    ``accuracy`` is that of ``checkpoint``. ``kept`` answers are right in both evaluations,
    ``gained`` only now, ``lost`` only before. ``interval`` is the 95% interval of
    ``difference``, the accuracy now minus ``accuracy``.
    """

    checkpoint: str
    examples: int
    accuracy: float
    kept: int
    gained: int
    lost: int
    difference: float
    interval: tuple[float, float]


class Summary(BaseModel, frozen=True, extra="allow"):
    """The scores of one model on one dataset. Extra fields are the metrics, by name.

    ``unseen_pairs`` and ``unseen_targets`` are the primary metric on the examples whose pair, or
    whose target, does not occur in training. With ``targets_in_train`` they are ``None`` for a run
    that started from another, whose training pairs are not known. Fields that only an evaluation
    can know are ``None`` if the answers of another program were scored.
    """

    checkpoint: str | None = None
    weights: str | None = None
    split: str | None = None
    pairs: str | None = None
    task: str
    accuracy: float
    primary: str
    by_origin: Sequence[ReadingOfOrigin] | None = None
    unanswered: int | None = None
    cut: int | None = None
    target_loss: float | None = None  # nats per token
    targets_in_train: int | None = None
    unseen_pairs: Reading | None = None
    unseen_targets: Reading | None = None
    examples_per_second: float | None = None
    before: Change | None = None

    __pydantic_extra__: dict[str, Reading] = Field(init=False)

    @model_validator(mode="after")
    def _has_primary(self) -> "Summary":
        if self.primary not in self.readings:
            raise ValueError(
                f"primary={self.primary} is not among {', '.join(self.readings)}"
            )
        return self

    @property
    def readings(self) -> dict[str, Reading]:
        """All metrics by name, in the task's order."""
        return self.__pydantic_extra__

    def to_json(self) -> str:
        """Return the summary as JSON, without fields that are ``None``."""
        return json.dumps(self.model_dump(exclude_none=True), indent=2)


def read_summary(folder: Path) -> Summary:
    """Read the summary in the folder of an evaluation; errors as of :func:`read_json`."""
    return read_json(Summary, folder / SUMMARY)


def scores_of_run(run: Path) -> dict[Path, Summary]:
    """Return the summaries in a run's folder by their folders, without those of other runs."""
    found = {}
    for file in sorted(run.glob(f"evaluation/*/{SUMMARY}")):
        summary = read_summary(file.parent)
        scored = Path(summary.checkpoint) if summary.checkpoint else None
        # One that is gone may have been moved along with its run.
        config = config_of_run(scored) if scored and scored.is_dir() else None
        if config is None or config.samefile(run / CONFIG):
            found[file.parent] = summary
    return found
