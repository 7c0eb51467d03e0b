"""The examples that an evaluation answers, and what scores the answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchtune.modules.transforms import Transform

from erjepa.checkpoints.model_card import datasets_of
from erjepa.configs import Config, components
from erjepa.configs.component import Components
from erjepa.datasets import Pairs, build_dataset, hold_out
from erjepa.tasks.score import load_task, require_fields, require_targets
from erjepa.tasks.summary import Seen, Texts, seen_in
from erjepa.tasks.task import Task

# Key of the dataset that is scored, by `eval_split`.
SCORED = {"test": "eval_dataset", "validation": "dataset"}


@dataclass(frozen=True)
class Examples:
    """Examples to answer.

    Args:
        cfg: config that says what they are and how they are scored.
        section: of the config, names the dataset, as JSON.
        seen: which of them occur in training, if that is known.
    """

    cfg: Config
    section: Any
    dataset: Pairs
    ids: Sequence[int]
    task: Task
    seen: Seen | None


def texts(dataset: Pairs, ids: Iterable[int]) -> list[Texts]:
    """Source and target of examples."""
    return [(dataset.source_text(i), dataset.target_text(i)) for i in ids]


def calls(section: Any) -> str:
    """The calls that make the datasets of a config's section."""
    return ", ".join(call for _, call in datasets_of({"dataset": section}))


def read_examples(
    cfg: Config,
    tokenizer: Transform,
    train_texts: Callable[[], Sequence[Texts] | None],
) -> Examples:
    """The pairs of ``eval_dataset``, or those that ``validation`` holds out of ``dataset``.

    Args:
        train_texts: called for what was trained on, with ``eval_dataset``; ``None``: it is not
            known.

    Raises:
        ValueError: naming the key, if there are none, or they cannot be scored.
    """
    dataset, ids, trained = scored_pairs(cfg, tokenizer)
    task = scoring_task(cfg, dataset, cfg.scored[1], ids)
    known = train_texts() if trained is None else texts(dataset, trained)
    seen = None
    if known is not None:
        seen = seen_in(known, dict(zip(ids, texts(dataset, ids), strict=True)))
    section = cfg.as_dict()[SCORED[cfg.eval_split]]
    return Examples(cfg, section, dataset, ids, task, seen)


def scored_pairs(
    cfg: Config, tokenizer: Transform
) -> tuple[Pairs, Sequence[int], Sequence[int] | None]:
    """The dataset that is scored, which of its pairs are, and which are trained on, if any.

    Raises:
        ValueError: if the config has no pairs to score.
    """
    key, section = cfg.scored
    dataset = build_dataset(section, tokenizer, key)
    if cfg.eval_split == "test":
        return dataset, range(len(dataset)), None
    assert cfg.validation.size is not None  # the config requires it
    split = hold_out(dataset.pairs, cfg.validation.size, cfg.validation.seed)
    return dataset, sorted(split.held_out), split.train


def scoring_task(
    cfg: Config, dataset: Pairs, section: Components, ids: Sequence[int]
) -> Task:
    """The task that examples are scored by, once the dataset has all that it needs.

    Raises:
        ValueError: naming the key, or the first example that cannot be scored.
    """
    task = load_task(cfg.task or dataset.task, cfg.databases, cfg.primary)
    for part, component in zip(dataset.parts, components(section), strict=True):
        require_fields(task, part, component.path)
    require_targets(task, dataset, ids)
    if cfg.primary is not None:
        target = dataset.target_text(ids[0])
        fields = {"target": target, "output": target, **dataset.scoring_fields(ids[0])}
        if cfg.primary not in (known := task.score([fields])[0]):
            raise ValueError(
                f"primary={cfg.primary}: task={task.name} has {', '.join(known)}"
            )
    return task
