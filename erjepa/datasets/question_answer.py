"""Datasets of questions and answers, stored as columns or as chats."""

from collections.abc import Callable
from typing import Any

from torchtune.modules.transforms import Transform

from erjepa.datasets.messages import RecordMessages
from erjepa.datasets.paired import PairedDataset
from erjepa.datasets.records import load_records
from erjepa.datasets.sources import locate, subsample


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
    """Build pairs from records with ``question`` and ``answer``, or with chats in ``messages``.

    Args:
        split: split of a folder, a URL or a hub dataset; ignored for a file.
        source: as in :func:`~erjepa.datasets.sources.locate`.

    Raises:
        FileNotFoundError: if ``source`` is a path and has no such file.
    """

    read_chat = RecordMessages({"messages": "messages"})

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
        answer = {**last, "content": read_answer(last["content"])}
        return read_chat({"messages": [*context, answer]})

    location = locate(source, name, split)
    records = load_records(location, split=split, **load_dataset_kwargs)
    return PairedDataset(
        subsample(records, max_examples, sample_seed),
        tokenizer,
        to_messages,
        task=name,
    )
