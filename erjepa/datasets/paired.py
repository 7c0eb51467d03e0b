"""Datasets of (source, target) pairs, and the general builder for them."""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import Dataset
from torchtune.data import InputOutputToMessages, Message, OpenAIToMessages
from torchtune.modules.transforms import Transform

from erjepa.datasets.chat_template import ChatTemplate
from erjepa.datasets.pairs import Pair
from erjepa.datasets.records import Record, load_records
from erjepa.datasets.sources import subsample


class PairedDataset(Dataset):
    """Map-style dataset of tokenized pairs; item ``i`` has example id ``i``.

    All pairs are tokenized here, so that a bad record is reported before a model is
    loaded. Records are messages first (torchtune's message transforms), tokens second
    (:class:`~erjepa.datasets.ChatTemplate`).

    Args:
        records (Sequence[Record]): raw records.
        tokenizer (Transform): torchtune model tokenizer.
        message_transform (Transform): from the fields of a record to ``{"messages": [...]}``.
        task (str): the task that answers are scored by where a config names none: a name, or
            the dotted path of a task.
        scoring_fields (Callable[[str], dict[str, Any]] | None): from the text of a source to
            what scoring its answer needs besides the target.

    Raises:
        ValueError: naming the record, if a field or role is missing or a side is empty.
    """

    def __init__(
        self,
        records: Sequence[Record],
        tokenizer: Transform,
        message_transform: Transform,
        task: str = "exact_match",
        scoring_fields: Callable[[str], dict[str, Any]] | None = None,
    ) -> None:
        self.task = task
        self._scoring_fields = scoring_fields or (lambda source: {})
        self._template = ChatTemplate(tokenizer)
        self._records = records
        self._message_transform = message_transform
        self._pairs = [
            Pair(i, *self._convert(record, self._template))
            for i, record in enumerate(records)
        ]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, example_id: int) -> Pair:
        return self._pairs[example_id]

    def where(self, example_id: int) -> str:
        """File and line (or dataset and row) that example ``example_id`` came from."""
        return self._records[example_id].where

    def messages(self, example_id: int) -> list[Message]:
        """The chat of this example; the last message is the target."""
        return self._convert(self._records[example_id], list)

    def prompt(self, example_id: int) -> list[int]:
        """Token ids from which a model is to generate the target of this example."""
        return self._convert(self._records[example_id], self._template.prompt)

    def target_text(self, example_id: int) -> str:
        """The target as the record has it, without surrounding white space."""
        return self.messages(example_id)[-1].text_content.strip()

    def source_text(self, example_id: int) -> str:
        """The last user message as the record has it, without surrounding white space."""
        return self.messages(example_id)[-2].text_content.strip()

    def scoring_fields(self, example_id: int) -> dict[str, Any]:
        """What scoring an answer to this example needs besides its target."""
        return self._scoring_fields(self.source_text(example_id))

    def _convert(self, record: Record, convert) -> Any:
        try:
            _require_texts(record)
            messages: list[Message] = self._message_transform(record.fields)["messages"]
            if len(messages) < 2:
                raise ValueError(
                    f"a pair needs a user and an assistant message, got {len(messages)}"
                )
            return convert(messages)
        except KeyError as error:
            raise ValueError(
                f"{record.where}: no field {error}; the record has "
                f"{sorted(record.fields)}. Name the columns with column_map."
            ) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{record.where}: {error}") from None


def _require_texts(record: Record) -> None:
    """torchtune's transform repeats the message before one whose content is no text."""
    for chat in record.fields.values():
        for message in chat if isinstance(chat, list) else ():
            if isinstance(message, dict) and "role" in message:
                content = message.get("content")
                if not isinstance(content, (str, list)):
                    raise TypeError(
                        f"{message['role']}: content {content!r} is no text"
                    )


def paired_dataset(
    tokenizer: Transform,
    *,
    source: str,
    split: str = "train",
    column_map: dict[str, str] | None = None,
    new_system_prompt: str | None = None,
    max_examples: int | None = None,
    sample_seed: int | None = None,
    **load_dataset_kwargs: Any,
) -> PairedDataset:
    """Pairs from a JSONL file, a URL or the hub.

    Args:
        tokenizer (Transform): torchtune model tokenizer.
        source (str): see :func:`~erjepa.datasets.load_records`.
        split (str): split of a hub dataset.
        column_map (dict[str, str] | None): ``{"input": ..., "output": ...}`` names the
            columns of source and target; ``{"messages": ...}`` the column of a chat.
            Default: chats in ``messages``.
        new_system_prompt (str | None): system message to put before every chat, in
            place of its own.
        max_examples (int | None): keep so many records.
        sample_seed (int | None): see :func:`~erjepa.datasets.sources.subsample`.
        **load_dataset_kwargs (Any): for ``datasets.load_dataset``.

    Returns:
        PairedDataset: the tokenized pairs.
    """
    records = load_records(source, split=split, **load_dataset_kwargs)
    if column_map and "input" in column_map:
        transform = InputOutputToMessages(
            column_map=dict(column_map), new_system_prompt=new_system_prompt
        )
    else:
        transform = OpenAIToMessages(
            column_map=dict(column_map) if column_map else None,
            new_system_prompt=new_system_prompt,
        )
    records = subsample(records, max_examples, sample_seed)
    return PairedDataset(records, tokenizer, transform)
