"""The examples that an evaluation answers, and what scores the answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchtune.modules.transforms import Transform

from erjepa.checkpoints.model_card import datasets_of
from erjepa.configs import Config, components
from erjepa.datasets import Pairs, build_dataset, hold_out
from erjepa.tasks.score import load_task, require_fields, require_targets
from erjepa.tasks.summary import verbatim_overlap
from erjepa.tasks.task import Task

# Key of the dataset that is scored, by `eval_split`.
SCORED = {"test": "eval_dataset", "validation": "dataset"}


@dataclass(frozen=True)
class Examples:
    """Examples to answer.

    Args:
        cfg: config that says what they are and how they are scored.
        in_train: how many of their targets occur in training, if that is known.
    """

    cfg: Config
    section: Any
    dataset: Pairs
    ids: Sequence[int]
    task: Task
    in_train: int | None

    @property
    def call(self) -> str:
        """The calls that make the dataset."""
        return calls(self.section)


def calls(section: Any) -> str:
    """The calls that make the datasets of a config's section."""
    return ", ".join(call for _, call in datasets_of({"dataset": section}))


def section_of(cfg: Config) -> Any:
    """The section that names the dataset to score, as JSON; ``None``: there is none."""
    return cfg.as_dict()[SCORED[cfg.eval_split]]


def read_examples(
    cfg: Config,
    tokenizer: Transform,
    train_targets: Callable[[], Sequence[str] | None],
) -> Examples:
    """The pairs of ``eval_dataset``, or those that ``validation`` holds out of ``dataset``.

    Args:
        train_targets: called for the targets trained on, with ``eval_dataset``; ``None``: they are
            not known.

    Raises:
        ValueError: naming the key, if there are none, or they cannot be scored.
    """
    key, section = cfg.scored
    dataset = build_dataset(section, tokenizer, key)
    task = load_task(cfg.task or dataset.task, cfg.databases)
    for part, component in zip(dataset.parts, components(section), strict=True):
        require_fields(task, part, component.path)
    if cfg.eval_split == "validation":
        size = cfg.validation.size
        assert size is not None  # the config requires it
        split = hold_out(dataset.pairs, size, cfg.validation.seed)
        ids = sorted(split.held_out)
        require_targets(task, dataset, ids)
        known: Sequence[str] | None = [dataset.target_text(i) for i in split.train]
    else:
        ids = list(range(len(dataset)))
        require_targets(task, dataset, ids)
        known = train_targets()
    in_train = None
    if known is not None:
        in_train = verbatim_overlap(known, [dataset.target_text(i) for i in ids])
    return Examples(cfg, section_of(cfg), dataset, ids, task, in_train)
