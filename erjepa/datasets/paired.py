"""Datasets of (source, target) pairs, and the general builder for them."""

import copy
import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset
from torchtune import utils
from torchtune.data import Message
from torchtune.modules.transforms import Transform

from erjepa.datasets.chat_template import ChatTemplate
from erjepa.datasets.messages import messages_of, not_read
from erjepa.datasets.pairs import Pair
from erjepa.datasets.records import Record, flat, load_records
from erjepa.datasets.sources import subsample
from erjepa.datasets.tokenized import tokenize
from erjepa.utils.escape import counted

log = utils.get_logger("INFO")

_MAX_NAMED = 10  # further bad records in an error


class _Reader(NamedTuple):
    """How the records of one dataset become chats, and how answers to them are scored."""

    to_messages: Transform
    task: str
    scoring_fields: Callable[[Mapping[str, Any]], dict[str, Any]]

    def user_text(self, text: str) -> str:
        return getattr(self.to_messages, "user_text", str)(text)


class PairedDataset(Dataset):
    """Map-style dataset of tokenized pairs; item ``i`` has example id ``i``.

    The constructor tokenizes all pairs, so that a bad record is reported before a model is loaded.
    ``a + b`` concatenates two datasets of the same tokenizer; example ids continue.

    Args:
        message_transform: maps the fields of a record to ``{"messages": [...]}``.
        task: name or dotted path of the task that scores answers, unless the config names one.
        scoring_fields: maps the fields of a record to those besides the target that are needed to
            score an answer.

    Attributes:
        pairs: the tokens of the pairs.
        names: name of the dataset, or of each concatenated one.
        starts: the first example id of each.

    Raises:
        ValueError: naming the record, if a field or role is missing, or source or target is empty.
    """

    def __init__(
        self,
        records: Sequence[Record],
        tokenizer: Transform,
        message_transform: Transform,
        task: str = "exact_match",
        scoring_fields: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _: {},
    ) -> None:
        self.names = ["dataset"]
        self.starts = [0]
        self._readers = [_Reader(message_transform, task, scoring_fields)]
        self._records = records
        self._template = ChatTemplate(tokenizer)
        self.pairs = tokenize(
            self._chats(), len(records), self._template, tokenizer, self.where
        )

    def __add__(self, other: "PairedDataset") -> "PairedDataset":  # type: ignore[override]
        both = copy.copy(self)
        both.names = [*self.names, *other.names]
        both.starts = [*self.starts, *(len(self) + start for start in other.starts)]
        both._readers = [*self._readers, *other._readers]
        both._records = [*self._records, *other._records]
        both.pairs = self.pairs + other.pairs
        return both

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, example_id: int) -> Pair:
        return self.pairs[example_id]

    @property
    def task(self) -> str:
        """The task that scores answers unless the config names one.

        Raises:
            ValueError: if concatenated datasets have different tasks.
        """
        task, *others = dict.fromkeys(reader.task for reader in self._readers)
        if others:
            raise ValueError(
                f"the datasets are scored by different tasks, {', '.join([task, *others])}; set "
                "task to the one for all, or score each dataset on its own: a run of erjepa_eval "
                "for each, with that one as eval_dataset"
            )
        return task

    def origin(self, example_id: int) -> int:
        """Return the index of the concatenated dataset that example ``example_id`` is from."""
        return bisect_right(self.starts, example_id) - 1

    def where(self, example_id: int) -> str:
        """Return file and line (or dataset and row) of example ``example_id``."""
        return self._records[example_id].where

    def messages(self, example_id: int) -> list[Message]:
        """Return the chat of an example; the last message is the target."""
        record = self._records[example_id]
        to_messages = self._reader(example_id).to_messages
        try:
            messages = to_messages(record.fields)["messages"]
            self._template.validate(messages)
        except KeyError as error:
            raise ValueError(
                f"{record.where}: no field {error}; the record has "
                f"{sorted(record.fields)}. erjepa.datasets.paired_dataset reads other "
                "columns, by its column_map"
            ) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{record.where}: {error}") from None
        return messages

    def _chats(self) -> Iterator[list[Message]]:
        """Yield all chats. The error of a bad record also names the others."""
        errors: dict[str, ValueError] = {}
        for i, record in enumerate(self._records):
            try:
                chat = self.messages(i)
            except ValueError as error:
                errors[record.where] = error
                continue
            if not errors:
                yield chat
        if errors:
            first, *others = errors
            message = str(errors[first])
            if others:
                named = ", ".join(others[:_MAX_NAMED])
                more = ", ..." * (len(others) > _MAX_NAMED)
                message += f"; {counted(len(others), 'more bad record')}: {named}{more}"
            raise ValueError(message)

    def require_turns(self) -> None:
        """Check that :meth:`Pair.earlier_turns` finds the assistant's earlier turns in every chat.

        Raises:
            ValueError: naming a chat in which it does not.
        """
        for i, pair in enumerate(self.pairs):
            turns = sum(m.role == "assistant" for m in self.messages(i)[:-1])
            found = sum(
                pair.source[at] == pair.target[-1] for at in pair.earlier_turns()
            )
            if found != turns:
                raise ValueError(
                    f"{self.where(i)}: train_on_turns=all needs the tokens of {turns} earlier "
                    f"turns of the assistant, and finds {found}: the chat template does not "
                    "begin and end them as it does the last one; set train_on_turns=last"
                )

    def prompt(self, example_id: int) -> list[int]:
        """Return the token ids of the prompt for the target of an example."""
        pair = self.pairs[example_id]
        return [*pair.source, *pair.bridge]

    def target_text(self, example_id: int) -> str:
        """Return the target as in the record, without surrounding white space."""
        return self.messages(example_id)[-1].text_content.strip()

    def source_text(self, example_id: int) -> str:
        """Return the last user message as in the record, without surrounding white space."""
        return self.messages(example_id)[-2].text_content.strip()

    def scoring_fields(self, example_id: int) -> dict[str, Any]:
        """Return the fields besides the target that are needed to score an answer."""
        fields = self._records[example_id].fields
        return self._reader(example_id).scoring_fields(fields)

    def ask(self, text: str, system_prompt: str | None = None) -> list[int]:
        """Return the token ids of the prompt for a source text that is not in the dataset.

        Args:
            system_prompt: system message; "": none; ``None``: that of the first example, if any.
        """
        return self._template.prompt(self.chat_of(text, system_prompt))

    def pair_of(self, text: str) -> Pair:
        """Return a source text as a pair with a placeholder target.

        Raises:
            ValueError: if ``text`` is empty.
        """
        return Pair(0, *self._template(self.chat_of(text)))

    def wordings(self) -> set[str]:
        """Return the prompts for the source text "...", one for each way of asking: the user
        message after ``new_system_prompt``, if it is set.
        """
        systems = (getattr(r.to_messages, "system", None) for r in self._readers)
        texts = (reader.user_text("...") for reader in self._readers)
        return {
            "\n".join(filter(None, turns)) for turns in zip(systems, texts, strict=True)
        }

    def chat_of(self, text: str, system_prompt: str | None = None) -> list[Message]:
        """Return the chat of a source text and a placeholder target, as in the first dataset."""
        first = self.messages(0)[0]
        turns = [("system", system_prompt)] if system_prompt else []
        if system_prompt is None and first.role == "system":
            turns = [("system", first.text_content)]  # which may be empty
        turns += [("user", self._readers[0].user_text(text)), ("assistant", "-")]
        return [Message(role=role, content=content) for role, content in turns]

    def _reader(self, example_id: int) -> _Reader:
        return self._readers[self.origin(example_id)]


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
    """Build pairs from a file, a folder, a URL or the hub, and log which columns were read.

    Args:
        column_map: maps the column names of a format in :mod:`~erjepa.datasets.messages` to those
            of the records, ``OUTER.INNER`` for a nested field. ``None``: the format follows from
            the columns of the first record.
        new_system_prompt: system message at the start of every chat, in place of its own.

    Raises:
        FileNotFoundError: if there is no source, or no such file.
        ValueError: if a record is no pair, naming its place; if the columns are unknown or
            ambiguous; or if an argument is unknown.
    """
    if source is None:
        raise FileNotFoundError(
            "dataset.source=null names no pairs; give dataset.source=FILE, or a folder, a URL "
            "or a dataset of the hub"
        )
    if load_dataset_kwargs and ("://" in source or Path(source).exists()):
        arguments = [*inspect.signature(paired_dataset).parameters][1:-1]
        raise ValueError(
            f"dataset.{next(iter(load_dataset_kwargs))}: a file or folder takes "
            f"{', '.join(arguments)}; further arguments are load_dataset's, for the hub"
        )
    records = flat(load_records(source, split=split, **load_dataset_kwargs))
    transform = messages_of(records, column_map, new_system_prompt)
    kept = subsample(records, max_examples, sample_seed)
    dataset = PairedDataset(kept, tokenizer, transform)
    some = "" if len(kept) == len(records) else f", {len(kept):,} kept"
    unread = ", ".join(not_read(records, transform))
    utils.log_rank_zero(
        log,
        f"{source}: {counted(len(records), 'record')}{some}; {transform}; "
        + (f"not read: {unread}." if unread else "no other column."),
    )
    return dataset
