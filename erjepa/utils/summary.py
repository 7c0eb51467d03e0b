"""What an evaluation finds, as ``summary.json`` has it."""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field, model_validator

from erjepa.utils.checked import checked
from erjepa.utils.files import SUMMARY, write_whole
from erjepa.utils.jsonl import parse_json


class Reading(BaseModel, frozen=True):
    """How many answers are right by one metric.

    ``interval`` is the 95% interval of ``share``; an ``undecided`` answer counts as not right.
    """

    share: float
    right: int
    undecided: int = 0
    examples: int
    interval: tuple[float, float]


class ReadingOfOrigin(Reading, frozen=True):
    """The primary metric of the answers to the pairs of one dataset."""

    origin: str


class Change(BaseModel, frozen=True):
    """What became of the answers of ``checkpoint`` to the same examples.

    ``accuracy`` is that of ``checkpoint``; ``kept`` answers are right before and now, ``gained``
    now alone, ``lost`` before alone. ``interval`` is the 95% interval of ``difference``, the
    accuracy now less the accuracy before.
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
    """The scores of one model on one dataset. Further keys are ``readings``: metrics by name.

    ``unseen_pairs`` and ``unseen_targets`` are the primary metric of the examples that do not
    occur in training, as pairs or by their targets. What only an evaluation knows is ``None``
    where answers of another program were scored.
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
    target_loss: float | None = None  # nats a token
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
        """Every metric of the answers, in the task's order."""
        return self.__pydantic_extra__

    def to_json(self) -> str:
        """The summary as JSON, without what is not known."""
        return json.dumps(self.model_dump(exclude_none=True), indent=2)


def read_summary(folder: Path) -> Summary:
    """The summary of an evaluation's folder.

    Raises:
        ValueError: naming the file and the key, if it is damaged.
    """
    path = folder / SUMMARY
    return checked(Summary, parse_json(path.read_bytes(), str(path)), str(path))


def write_summary(folder: Path, summary: Summary) -> None:
    """Write the summary into an evaluation's folder, whole or not at all."""
    write_whole(folder / SUMMARY, summary.to_json() + "\n")
