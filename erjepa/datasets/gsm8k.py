"""GSM8K: questions with worked solutions; and how questions and answers are read at all.

Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems": 7473 training and 1319
test questions, each with a solution whose last line is ``#### ANSWER``.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from torchtune.data import OpenAIToMessages
from torchtune.modules.transforms import Transform

from erjepa.datasets.paired import PairedDataset
from erjepa.datasets.records import load_records

GSM8K_SOURCE = "openai/gsm8k"
GSM8K_REVISION = "e53f048856ff4f594e959d75785d2c2d37b678ee"
SYSTEM_PROMPT = "Answer the math question, show steps."  # of LLM-JEPA's files

Item = TypeVar("Item")


def gsm8k_dataset(
    tokenizer: Transform,
    *,
    split: Literal["train", "test"] = "train",
    source: str = GSM8K_SOURCE,
    revision: str | None = None,
    max_examples: int | None = None,
    sample_seed: int | None = None,
) -> PairedDataset:
    """GSM8K as chat pairs.

    Args:
        tokenizer (Transform): torchtune model tokenizer.
        split (Literal["train", "test"]): 7473 or 1319 pairs.
        source (str): a dataset of the hub with GSM8K's columns, or see
            :func:`question_answer_dataset`.
        revision (str | None): of a hub dataset. ``None``: a fixed one of the default
            source, so that a run can be repeated; the newest of any other.
        max_examples (int | None): keep so many pairs.
        sample_seed (int | None): see :func:`subsample`.

    Returns:
        PairedDataset: the tokenized pairs.

    Raises:
        ValueError: if there is no such split.
    """
    if split not in ("train", "test"):
        raise ValueError(f"dataset.split={split}: GSM8K has train and test only")
    if source == GSM8K_SOURCE:
        revision = revision or GSM8K_REVISION
    return question_answer_dataset(
        tokenizer,
        name="gsm8k",
        split=split,
        source=source,
        system_prompt=SYSTEM_PROMPT,
        max_examples=max_examples,
        sample_seed=sample_seed,
        load_dataset_kwargs={"name": "main", "revision": revision},
    )


def question_answer_dataset(
    tokenizer: Transform,
    *,
    name: str,
    split: str,
    source: str,
    system_prompt: str,
    read_answer: Callable[[Any], str] = lambda answer: answer,
    max_examples: int | None = None,
    sample_seed: int | None = None,
    load_dataset_kwargs: dict[str, Any],
) -> PairedDataset:
    """Pairs from records with ``question`` and ``answer``, or from chats in ``messages``.

    Args:
        tokenizer (Transform): torchtune model tokenizer.
        name (str): of the dataset, in names of files.
        split (str): of a folder, a URL or a hub dataset; a file is one split already.
        source (str): a ``.jsonl`` file or URL, a folder with ``{split}.jsonl`` or
            ``{name}_{split}.jsonl``, a URL with the latter, or a dataset of the hub.
        system_prompt (str): system message of a question; a chat keeps its own.
        read_answer (Callable[[Any], str]): from a record's answer to the target.
        max_examples (int | None): keep so many records.
        sample_seed (int | None): see :func:`subsample`.
        load_dataset_kwargs (dict[str, Any]): for a hub dataset.

    Returns:
        PairedDataset: the tokenized pairs.

    Raises:
        FileNotFoundError: if ``source`` is a path where no such file is.
    """

    def to_messages(fields: dict[str, Any]) -> dict[str, Any]:
        if "messages" in fields:
            chat = fields["messages"]
        else:
            chat = [
                {"role": "system", "content": system_prompt},
                {"role": "user", "content": fields["question"]},
                {"role": "assistant", "content": fields["answer"]},
            ]
        *context, last = chat
        chat = [*context, {**last, "content": read_answer(last["content"])}]
        for message in chat:
            # torchtune would repeat the message before, without a word.
            if not isinstance(message["content"], str):
                raise TypeError(f"{message['role']}: {message['content']!r} is no text")
        return OpenAIToMessages()({"messages": chat})

    location = _locate(source, name, split)
    records = load_records(location, split=split, **load_dataset_kwargs)
    return PairedDataset(
        subsample(records, max_examples, sample_seed), tokenizer, to_messages
    )


def subsample(
    items: Sequence[Item], size: int | None, seed: int | None
) -> Sequence[Item]:
    """Some of the items, in their order; the same ones every time.

    Args:
        items (Sequence[Item]): to choose from.
        size (int | None): how many to keep; ``None``, or more than there are: all.
        seed (int | None): of a random choice, where a larger size keeps the choice of a
            smaller one. ``None``: the first ``size``.

    Returns:
        Sequence[Item]: the chosen ones.

    Raises:
        ValueError: if ``size`` is less than 1, or missing where there is a seed.
    """
    if size is None:
        if seed is not None:
            raise ValueError(f"sample_seed={seed} needs max_examples")
        return items
    if size < 1:
        raise ValueError(f"max_examples={size} must be at least 1")
    if seed is None:
        return items[:size]
    order = list(range(len(items)))
    random.Random(seed).shuffle(order)
    return [items[i] for i in sorted(order[:size])]


def _locate(source: str, name: str, split: str) -> str:
    """The file of a split, if ``source`` is a place of files; else ``source``."""
    if "://" in source:
        if urlsplit(source).path.endswith(".jsonl"):
            return source
        return f"{source.rstrip('/')}/{name}_{split}.jsonl"
    if Path(source).is_dir():
        files = [Path(source) / f for f in (f"{split}.jsonl", f"{name}_{split}.jsonl")]
        for file in files:
            if file.is_file():
                return str(file)
        raise FileNotFoundError(
            f"dataset.source={source} holds neither {files[0].name} nor {files[1].name}"
        )
    # A name on the hub is relative; without this its errors would speak of repositories.
    if source.startswith(("/", ".")) and not Path(source).exists():
        raise FileNotFoundError(f"dataset.source={source}: no such file or folder")
    return source
