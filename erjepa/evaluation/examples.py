"""The examples of an evaluation, and the task that scores them."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchtune.modules.transforms import Transform

from erjepa.checkpoints.fingerprint import data_of, digest_of_pairs
from erjepa.checkpoints.model_card import datasets_of
from erjepa.configs import Config
from erjepa.datasets import PairedDataset, build_dataset, hold_out, origin_labels
from erjepa.tasks.score import load_task
from erjepa.tasks.summary import Texts
from erjepa.tasks.task import Task

# Value of `eval_split` -> key of the scored dataset.
SCORED = {"test": "eval_dataset", "validation": "dataset"}


@dataclass(frozen=True)
class Examples:
    cfg: Config  # of the dataset and of the scoring
    dataset: PairedDataset
    ids: Sequence[int]
    # Of the pairs of the dataset that are trained on; None: it is another dataset than that.
    trained: Sequence[int] | None
    task: Task

    @cached_property
    def section(self) -> Any:
        """The section of the config that names the dataset, as JSON."""
        return self.cfg.as_dict()[SCORED[self.cfg.eval_split]]

    @cached_property
    def data(self) -> dict[str, Any]:
        """The whole dataset and what is held out of it, see :func:`data_of`."""
        return data_of(self.cfg, self.dataset.pairs)

    @cached_property
    def digest(self) -> str:
        """Short digest of the pairs and of the fields that score them."""
        pairs = digest_of_pairs(self.dataset.pairs[i] for i in self.ids)
        fields = json.dumps([*scoring_fields(self.dataset, self.ids)], sort_keys=True)
        return f"{pairs} {hashlib.sha256(fields.encode()).hexdigest()[:12]}"

    @cached_property
    def texts(self) -> dict[int, Texts]:
        """The texts of source and target, by example id."""
        return dict(zip(self.ids, texts(self.dataset, self.ids), strict=True))


def scoring_fields(
    dataset: PairedDataset, ids: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """Yield the fields besides the target that score an answer: those of the task and, with several
    datasets, the label of the pair's dataset as ``origin``.
    """
    labels = origin_labels(dataset.names)
    for i in ids:
        origin = {"origin": labels[dataset.origin(i)]} if len(labels) > 1 else {}
        yield {**dataset.scoring_fields(i), **origin}


def texts(dataset: PairedDataset, ids: Iterable[int]) -> Iterator[Texts]:
    return ((dataset.source_text(i), dataset.target_text(i)) for i in ids)


def calls(section: Any) -> str:
    """Return the calls that build the datasets of a config section, for messages."""
    return ", ".join(call for _, call in datasets_of(section))


def read_examples(cfg: Config, tokenizer: Transform) -> Examples:
    """Read the pairs of ``eval_dataset``, or those that ``validation`` holds out of ``dataset``.

    Raises:
        ValueError: naming the key, if there are no pairs, or they cannot be scored.
    """
    dataset, ids, trained = scored_pairs(cfg, tokenizer)
    return Examples(cfg, dataset, ids, trained, scoring_task(cfg, dataset, ids))


def scored_pairs(
    cfg: Config, tokenizer: Transform
) -> tuple[PairedDataset, Sequence[int], Sequence[int] | None]:
    """Return the scored dataset, the ids of its scored pairs, and of its training pairs if any.

    Raises:
        ValueError: if the config has no pairs to score.
    """
    key = SCORED[cfg.eval_split]
    if (section := getattr(cfg, key)) is None:
        raise ValueError(
            "eval_dataset is null: there is nothing to score; set it, or score the pairs "
            "held out by validation.size: eval_split=validation"
        )
    dataset = build_dataset(section, tokenizer, key)
    if cfg.eval_split == "test":
        return dataset, range(len(dataset)), None
    assert cfg.validation.size is not None  # the config requires it
    split = hold_out(dataset.pairs, cfg.validation.size, cfg.validation.seed)
    return dataset, sorted(split.held_out), split.train


def scoring_task(cfg: Config, dataset: PairedDataset, ids: Sequence[int]) -> Task:
    """Load the task that scores the examples, and check that the dataset has its fields.

    Raises:
        ValueError: naming the key, or the first example that cannot be scored.
    """
    task = load_task(cfg.task or dataset.task, cfg.databases, cfg.primary)
    for name, start in zip(dataset.names, dataset.starts, strict=True):
        provided = {"target", "output", *dataset.scoring_fields(start)}
        if missing := sorted(set(task.fields) - provided):
            raise ValueError(
                f"task={task.name} needs {', '.join(missing)}, which {name} does not provide"
            )
    for i in ids:
        if problem := task.problem(dataset.target_text(i)):
            raise ValueError(f"{dataset.where(i)}: {problem}")
    if cfg.primary is not None:
        target = dataset.target_text(ids[0])
        fields = {"target": target, "output": target, **dataset.scoring_fields(ids[0])}
        _, verdicts = task.judge([fields])
        if cfg.primary not in (known := verdicts[0]):
            raise ValueError(
                f"primary={cfg.primary}: task={task.name} has {', '.join(known)}"
            )
    return task
