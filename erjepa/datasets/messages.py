"""Conversion of a record's columns to a chat, by torchtune's message transforms.

==========  ==================================  ============================================
format      columns, or keys of ``column_map``  contents
==========  ==================================  ============================================
chat        ``messages``                        turns with ``role`` and ``content``
ShareGPT    ``conversations``                   turns with ``from`` and ``value``
Alpaca      ``instruction``, ``input``          texts, wrapped in Alpaca's prompt
            (optional), ``output``
columns     ``input``, ``output``               the texts of source and target
==========  ==================================  ============================================
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torchtune.data import (
    AlpacaToMessages,
    InputOutputToMessages,
    Message,
    OpenAIToMessages,
    ShareGPTToMessages,
)
from torchtune.modules.transforms import Transform

from erjepa.datasets.records import Record

_CHATS = {"messages": ("role", "content"), "conversations": ("from", "value")}
_ALPACA = ("instruction", "input", "output")
# Keys of a format, sources before the target.
_TRANSFORMS: dict[tuple[str, ...], Callable[[], Transform]] = {
    ("messages",): OpenAIToMessages,
    ("conversations",): ShareGPTToMessages,
    _ALPACA: AlpacaToMessages,
    ("instruction", "output"): AlpacaToMessages,
    ("input", "output"): InputOutputToMessages,
}
# Names of source and target columns that need no column_map.
_SIDES = (
    ("input", "output"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("source", "target"),
)


class RecordMessages:
    """Message transform of one format, whose errors name what is wrong with a record.

    Args:
        columns: maps the format's column names to those of the records; the keys determine the
            format.
        new_system_prompt: system message at the start of every chat, in place of its own.

    Raises:
        ValueError: if the keys match no format.
    """

    def __init__(
        self, columns: Mapping[str, str], new_system_prompt: str | None = None
    ) -> None:
        keys = next((keys for keys in _TRANSFORMS if {*keys} == {*columns}), None)
        if keys is None:
            raise ValueError(
                f"dataset.column_map names {', '.join(columns) or 'nothing'}; expected input and "
                "output; instruction, input and output; messages; or conversations"
            )
        self.columns = {key: columns[key] for key in keys}
        self._transform = _TRANSFORMS[keys]()
        self.system = new_system_prompt

    def __call__(self, fields: Mapping[str, Any]) -> dict[str, list[Message]]:
        """Return the chat of a record.

        Raises:
            TypeError: naming a column or turn that is not a text.
            ValueError: naming a missing or empty column or an invalid turn.
        """
        given: dict[str, Any] = {}
        for key, column in self.columns.items():
            is_optional = key == "input" and "instruction" in self.columns
            if column not in fields and not is_optional:
                raise ValueError(f"no field {column!r}; it has {sorted(fields)}")
            value = fields.get(column)
            if is_optional and value is None:
                value = ""
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)  # such as an answer that is a number
            if key in _CHATS:
                value = _read_turns(value, column, *_CHATS[key])
            else:
                require_text(value, f"column {column!r}", may_be_empty=is_optional)
            given[key] = value
        messages = self._transform(given)["messages"]
        if self.system is not None:
            turns = (m for m in messages if m.role != "system")
            messages = [Message(role="system", content=self.system), *turns]
        return {"messages": messages}

    def user_text(self, text: str) -> str:
        """Return the content of the user message for a source text."""
        if "instruction" not in self.columns:
            return text
        alpaca = {"instruction": text, "output": "-"}
        return self._transform(alpaca)["messages"][0].text_content

    def __str__(self) -> str:
        names = list(self.columns.values())
        if "messages" in self.columns:
            return f"chats in {names[0]}"
        if "conversations" in self.columns:
            return f"ShareGPT's chats in {names[0]}"
        if "instruction" in self.columns:
            return f"Alpaca's {', '.join(names[:-1])} as source, {names[-1]} as target"
        return f"{names[0]} as source, {names[1]} as target"


def messages_of(
    records: Sequence[Record],
    column_map: Mapping[str, str] | None = None,
    new_system_prompt: str | None = None,
) -> RecordMessages:
    """Return the transform for records, chosen by ``column_map`` or the first record's columns.

    Raises:
        ValueError: if they match no format, or more than one.
    """
    where, fields = records[0]
    mapped = dict(column_map or {})
    for key, column in mapped.items():
        is_optional = key == "input" and "instruction" in mapped
        having = records if is_optional else records[:1]
        if not any(column in fields for _, fields in having):
            raise ValueError(
                f"{where}: no field {column!r}; it has {sorted(fields)}. Set "
                f"dataset.column_map.{key} to the name of the column"
            )
    if len(mapped) == 1 and mapped.keys() <= _CHATS.keys():
        ((key, column),) = mapped.items()
        mapped = {_chat_key(fields.get(column), key): column}
    if mapped:
        return RecordMessages(mapped, new_system_prompt)
    present = {name: name for name, value in fields.items() if value is not None}
    # Without values the names decide, and the null cell is then reported.
    choices = (present, _by_known_name(present), _by_known_name(fields))
    found = next(filter(None, (_formats(records, named) for named in choices)), [])
    if len(found) == 1:
        return RecordMessages(found[0], new_system_prompt)
    reads = " or ".join(", ".join(columns.values()) for columns in found)
    for_labels = ""
    if {"text", "label"} <= fields.keys():
        for_labels = (
            "; for texts with labels: tune run erjepa_recipe --config NAME "
            "dataset=erjepa.datasets.classification_dataset dataset.source=FILE"
        )
    raise ValueError(
        f"{where}: the record has the columns {list(fields)}; "
        + (f"read {reads}?" if found else "none of them is known as source or target.")
        + " Name them with dataset.column_map.input=COLUMN dataset.column_map.output=COLUMN, or "
        "dataset.column_map.messages=COLUMN for chats" + for_labels
    )


def _formats(
    records: Sequence[Record], named: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return the column map of each format whose names ``named`` maps to columns."""
    fields = records[0].fields
    found = [
        {_chat_key(fields[named[key]], key): named[key]}
        for key in _CHATS
        if key in named
    ]
    if {"instruction", "output"} <= named.keys():
        of_all = dict.fromkeys(name for _, fields in records for name in fields)
        named = {**_by_known_name(of_all), **named}
        found.append({key: named[key] for key in _ALPACA if key in named})
    else:
        sides = [pair for pair in _SIDES if named.keys() >= {*pair}]
        found += [{"input": named[pair[0]], "output": named[pair[1]]} for pair in sides]
    return found


def _by_known_name(columns: Iterable[str]) -> dict[str, str]:
    """Map names to columns, also in lower case and without surrounding white space."""
    exact = {column: column for column in columns}
    return {**{column.strip().lower(): column for column in exact}, **exact}


def not_read(records: Sequence[Record], transform: RecordMessages) -> list[str]:
    """List the columns, and keys of turns as ``COLUMN.KEY``, that have values but are not read;
    of more than 20, the first 20 and ``...``.
    """
    columns = transform.columns
    unread = _other_keys((fields for _, fields in records), columns.values())
    for key in _CHATS.keys() & columns.keys():
        chats = (fields.get(columns[key]) for _, fields in records)
        turns = (turn for chat in chats if isinstance(chat, list) for turn in chat)
        of_turns = _other_keys((t for t in turns if isinstance(t, dict)), _CHATS[key])
        unread += [f"{columns[key]}.{name}" for name in of_turns]
    return unread[:20] + ["..."] * (len(unread) > 20)


def _other_keys(rows: Iterable[Mapping[str, Any]], known: Collection[str]) -> list[str]:
    """Return the keys besides ``known`` that have a value in some row, each once."""
    found = (
        key
        for row in rows
        for key, value in row.items()
        if key not in known and value is not None
    )
    return list(dict.fromkeys(found))


def require_text(value: Any, place: str, *, may_be_empty: bool = False) -> None:
    """Check that a value is a text.

    Raises:
        TypeError: if it is not a string.
        ValueError: if it is empty, or contains a lone surrogate.
    """
    if not isinstance(value, str):
        shown = "null" if value is None else f"{value!r:.40} ({type(value).__name__})"
        raise TypeError(f"{place} holds {shown}; expected a text")
    if not (may_be_empty or value.strip()):
        raise ValueError(f"{place} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place} holds a lone surrogate, {value[error.start]!a}"
        ) from None


def _read_turns(
    turns: Any, column: str, speaker: str, said: str
) -> list[dict[str, Any]]:
    """Check turns: for an invalid one torchtune repeats the previous, or fails without a place.
    Join the text parts of each: Llama 3's tokenizer would strip every part.
    """
    roles = {
        "role": ("system", "user", "assistant", "ipython"),
        "from": ("system", "human", "gpt"),
    }[speaker]
    if not isinstance(turns, list):
        raise TypeError(f"column {column!r} holds no list of turns")
    read = []
    for i, turn in enumerate(turns):
        place = f"column {column!r}, turn {i}"
        if not (isinstance(turn, dict) and {speaker, said} <= turn.keys()):
            raise ValueError(
                f"{place}: expected {speaker} and {said}, got {turn!r:.60}"
            )
        if turn[speaker] not in roles:
            raise ValueError(
                f"{place}: {speaker} is {turn[speaker]!r}, expected {', '.join(roles)}"
            )
        parts = turn[said]
        if not isinstance(parts, list):
            parts = [{"type": "text", "text": parts}]
        for part in parts:
            if not isinstance(part, dict) or part.get("type") != "text":
                raise ValueError(f"{place}: {part!r:.60} is no text")
            require_text(part.get("text"), f"{place}: {said}", may_be_empty=True)
        read.append({**turn, said: "".join(part["text"] for part in parts)})
    return read


def _chat_key(turns: Any, otherwise: str) -> str:
    """Return the key in ``_CHATS`` of the format of some turns, or ``otherwise`` if unknown."""
    match turns:
        case [{"role": _, "content": _}, *_]:
            return "messages"
        case [{"from": _, "value": _}, *_]:
            return "conversations"
    return otherwise
