"""Datasets of (source, target) pairs, and the general builder for them."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset
from torchtune import utils
from torchtune.data import Message
from torchtune.modules.transforms import Transform

from erjepa.datasets.chat_template import ChatTemplate
from erjepa.datasets.messages import RecordMessages, messages_of, not_read
from erjepa.datasets.pairs import Pair
from erjepa.datasets.records import Record, load_records
from erjepa.datasets.sources import subsample
from erjepa.datasets.tokenized import tokenize
from erjepa.utils.escape import counted

log = utils.get_logger("INFO")


class PairedDataset(Dataset):
    """Map-style dataset of tokenized pairs; item ``i`` has example id ``i``.

    All pairs are tokenized here, so that a bad record is reported before a model is loaded.

    Args:
        message_transform: from the fields of a record to ``{"messages": [...]}``.
        task: name or dotted path of the task that answers are scored by, unless a config names one.
        scoring_fields: from the text of a source to what scoring its answer needs besides the
            target.

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
        chats = map(self._chat, records)
        self.pairs = tokenize(
            chats, len(records), self._template, tokenizer, self.where
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, example_id: int) -> Pair:
        return self.pairs[example_id]

    @property
    def parts(self) -> list["PairedDataset"]:
        """The datasets that this is made of: itself."""
        return [self]

    def where(self, example_id: int) -> str:
        """File and line (or dataset and row) that example ``example_id`` came from."""
        return self._records[example_id].where

    def messages(self, example_id: int) -> list[Message]:
        """The chat of this example; the last message is the target."""
        return self._chat(self._records[example_id])

    def prompt(self, example_id: int) -> list[int]:
        """Token ids from which a model is to generate the target of this example."""
        return self._template.prompt(self.messages(example_id))

    def target_text(self, example_id: int) -> str:
        """The target as the record has it, without surrounding white space."""
        return self.messages(example_id)[-1].text_content.strip()

    def source_text(self, example_id: int) -> str:
        """The last user message as the record has it, without surrounding white space."""
        return self.messages(example_id)[-2].text_content.strip()

    def scoring_fields(self, example_id: int) -> dict[str, Any]:
        """What scoring an answer to this example needs besides its target."""
        return self._scoring_fields(self.source_text(example_id))

    def ask(self, text: str, system_prompt: str | None = None) -> list[int]:
        """Token ids of the prompt that the dataset would make of a source text.

        Args:
            system_prompt: system message; "": none; ``None``: that of the first example, if it has
                one.
        """
        return self._template.prompt(self._chat_of(text, system_prompt))

    def pair_of(self, text: str, system_prompt: str | None = None) -> Pair:
        """A source text as a pair, with a placeholder as its target.

        Raises:
            ValueError: if ``text`` is empty.
        """
        return Pair(0, *self._template(self._chat_of(text, system_prompt)))

    def _chat_of(self, text: str, system_prompt: str | None) -> list[Message]:
        first = self.messages(0)[0]
        if system_prompt is None and first.role == "system":
            system_prompt = first.text_content
        user_text = getattr(self._message_transform, "user_text", str)
        turns = [("system", system_prompt)] if system_prompt else []
        turns += [("user", user_text(text)), ("assistant", "-")]
        return [Message(role=role, content=content) for role, content in turns]

    def _chat(self, record: Record) -> list[Message]:
        """The messages of a record, which make a pair."""
        try:
            if not isinstance(self._message_transform, RecordMessages):
                _require_texts(record)
            messages = self._message_transform(record.fields)["messages"]
            self._template.validate(messages)
        except KeyError as error:
            raise ValueError(
                f"{record.where}: no field {error}; the record has "
                f"{sorted(record.fields)}. Name the columns with column_map."
            ) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{record.where}: {error}") from None
        return messages


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
    source: str | None,
    split: str = "train",
    column_map: dict[str, str] | None = None,
    new_system_prompt: str | None = None,
    max_examples: int | None = None,
    sample_seed: int | None = None,
    **load_dataset_kwargs: Any,
) -> PairedDataset:
    """Pairs from a file, a folder, a URL or the hub. Says what was read, and what was not.

    Args:
        column_map: what a format of :mod:`~erjepa.datasets.messages` calls a column, to its name.
            ``None``: the columns tell.
        new_system_prompt: system message to put before every chat, in place of its own.

    Raises:
        ValueError: naming the place, if something is no pair; if the columns do not tell which of
            them are read; if an argument is unknown; or if there is no source.
    """
    if source is None:
        raise ValueError(
            "dataset.source=null names no pairs; give dataset.source=FILE, or a folder, a URL "
            "or a dataset of the hub"
        )
    if load_dataset_kwargs and ("://" in source or Path(source).exists()):
        arguments = [*inspect.signature(paired_dataset).parameters][1:-1]
        raise ValueError(
            f"dataset.{next(iter(load_dataset_kwargs))}: a file or folder takes "
            f"{', '.join(arguments)}; further arguments are load_dataset's, for the hub"
        )
    records = load_records(source, split=split, **load_dataset_kwargs)
    transform = messages_of(records, column_map, new_system_prompt)
    kept = subsample(records, max_examples, sample_seed)
    dataset = PairedDataset(kept, tokenizer, transform)
    some = "" if len(kept) == len(records) else f", {len(kept):,} kept"
    rest = ", ".join(not_read(records, transform)) or "no other column"
    utils.log_rank_zero(
        log,
        f"{source}: {counted(len(records), 'record')}{some}; {transform}; "
        + (f"not read: {rest}." if rest != "no other column" else f"{rest}."),
    )
    return dataset
