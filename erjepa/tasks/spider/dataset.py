"""Spider: questions about databases, and SQL queries that answer them.

Yu et al. 2018, "Spider: A Large-Scale Human-Labeled Dataset for Complex and Cross-Domain
Semantic Parsing and Text-to-SQL Task". LLM-JEPA's random split has 6587 training and 1447
test pairs. All databases of its test file and 1041 of its 1447 test queries occur in its
training file; with ``split_by="database"`` no database occurs in both splits.

The first line of a source text names its database, in both values of ``prompt``:

    bare                        with_schema
    For db_id:[shop]            For db_id:[shop]

    How many clerks are there?  clerk(id number primary key, name text, shop_id number)
                                shop(id number primary key)
                                clerk.shop_id = shop.id

                                How many clerks are there?
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torchtune.modules.transforms import Transform
from typing_extensions import TypedDict

from erjepa.datasets.messages import RecordMessages
from erjepa.datasets.paired import PairedDataset
from erjepa.datasets.records import Record, load_records
from erjepa.datasets.sources import LLM_JEPA_DATASETS, locate, subsample
from erjepa.utils.checked import checked
from erjepa.utils.jsonl import parse_json

SYSTEM_PROMPT = "Convert natural language to SQL."  # from LLM-JEPA's files

# With split_by="database", about one of TEST_SHARE databases belongs to the test split: 37
# of 160 databases, with 1653 of 8034 pairs.
TEST_SHARE = 5

_SOURCE_TEXT = re.compile(r"For db_id:\[([^\]\n]+)\]\n\n(.*)", re.DOTALL)


class Schema(TypedDict):
    """The keys of a database in Spider's ``tables.json`` that are read."""

    db_id: str
    table_names_original: list[str]
    column_names_original: list[tuple[int, str]]  # index of the table, name
    column_types: list[str]
    primary_keys: list[int]
    foreign_keys: list[tuple[int, int]]


def spider_dataset(
    tokenizer: Transform,
    *,
    split: Literal["train", "test", "validation"] = "train",
    source: str = LLM_JEPA_DATASETS,
    prompt: Literal["bare", "with_schema"] = "bare",
    tables: str | None = None,
    split_by: Literal["record", "database"] = "record",
    revision: str | None = None,
    max_examples: int | None = None,
    sample_seed: int | None = None,
) -> PairedDataset:
    """Build Spider as chat pairs.

    Args:
        split: LLM-JEPA's files are ``train`` and ``test``; the hub has ``train`` and
            ``validation``.
        source: folder with ``spider_{split}.jsonl`` or ``{split}.jsonl``, a URL of a folder with
            the former, a ``.jsonl`` file or URL, or a dataset of the hub, such as
            ``xlangai/spider``. Records are LLM-JEPA's chats in ``messages``, or have the hub's
            columns ``db_id``, ``question`` and ``query``.
        prompt: whether the source text includes the schema of its database.
        tables: Spider's ``tables.json``, for ``prompt="with_schema"``.
        split_by: ``record``: the split of the files. ``database``: LLM-JEPA's two files are split
            anew by a hash of the database's name, so that no database is in both splits.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the schema of a database is unknown, or a record is not in Spider's format.
    """
    schemas = _load_schemas(tables) if prompt == "with_schema" else None
    if split_by == "record":
        place = locate(source, "spider", split)
        loaded = load_records(place, split=split, revision=revision)
        records = [_as_chat(record) for record in loaded]
    else:
        records = _split_by_database(source, split)
    records = list(subsample(records, max_examples, sample_seed))
    if schemas is not None:
        records = [_with_schema(record, schemas, tables) for record in records]
    return PairedDataset(
        records,
        tokenizer,
        RecordMessages({"messages": "messages"}),
        task="spider",
        scoring_fields=lambda fields: {"db_id": _database(fields)},
    )


def in_test_split(db_id: str) -> bool:
    """Return whether a database is in the test split of ``split_by="database"``."""
    return int(hashlib.sha256(db_id.encode()).hexdigest(), 16) % TEST_SHARE == 0


def schema_text(schema: Schema) -> str:
    """Return a schema as text: one line per table, then one per foreign key."""
    tables = schema["table_names_original"]
    columns = schema["column_names_original"]
    primary = set(schema["primary_keys"])
    inside: list[list[str]] = [[] for _ in tables]
    for i, ((table, name), kind) in enumerate(
        zip(columns, schema["column_types"], strict=True)
    ):
        if table >= 0:  # -1 is the column "*"
            inside[table].append(f"{name} {kind}{' primary key' * (i in primary)}")
    lines = [
        f"{name}({', '.join(parts)})"
        for name, parts in zip(tables, inside, strict=True)
    ]
    for pair in schema["foreign_keys"]:
        ends = [f"{tables[columns[i][0]]}.{columns[i][1]}" for i in pair]
        lines.append(" = ".join(ends))
    return "\n".join(lines)


def _parse(source_text: str) -> tuple[str, str]:
    """Return the name of the database and the question."""
    match = _SOURCE_TEXT.fullmatch(source_text)
    if match is None:
        raise ValueError(
            "a source text of Spider starts with 'For db_id:[NAME]' and an empty line, "
            f"got {source_text[:60]!r}"
        )
    return match[1], match[2]


def _as_chat(record: Record) -> Record:
    """Return a record as a chat whose last two messages are the question and the query."""
    fields = record.fields
    try:
        if "messages" in fields:
            _database(fields)
            return record
        turns = (
            ("system", SYSTEM_PROMPT),
            ("user", f"For db_id:[{fields['db_id']}]\n\n{fields['question']}"),
            ("assistant", fields["query"]),
        )
    except KeyError as error:
        raise ValueError(
            f"{record.where}: no field {error}; the record has {sorted(fields)}, and "
            "Spider's have messages, or db_id, question and query."
        ) from None
    except (ValueError, IndexError, TypeError) as error:
        raise ValueError(f"{record.where}: {error}") from None
    messages = [{"role": role, "content": content} for role, content in turns]
    return Record(record.where, {"messages": messages})


def _split_by_database(source: str, split: str) -> list[Record]:
    places = [locate(source, "spider", name) for name in ("train", "test")]
    if split == "validation" or places[0] == places[1]:
        raise ValueError(
            f"dataset.split_by=database with split={split}, source={source}: this split "
            "has train and test, made of LLM-JEPA's two files; set source to their folder"
        )
    records = [_as_chat(record) for place in places for record in load_records(place)]
    return [
        record
        for record in records
        if in_test_split(_database(record.fields)) == (split == "test")
    ]


def _database(fields: Mapping[str, Any]) -> str:
    return _parse(fields["messages"][-2]["content"])[0]


def _load_schemas(tables: str | None) -> dict[str, Schema]:
    if tables is None:
        raise ValueError(
            "dataset.tables is not set; prompt=with_schema needs Spider's tables.json"
        )
    if not Path(tables).is_file():
        raise FileNotFoundError(f"dataset.tables={tables}: no such file")
    where = f"dataset.tables={tables}"
    values = parse_json(Path(tables).read_bytes(), where)
    return {schema["db_id"]: schema for schema in checked(list[Schema], values, where)}


def _with_schema(
    record: Record, schemas: dict[str, Schema], tables: str | None
) -> Record:
    *context, user, target = record.fields["messages"]
    db_id, question = _parse(user["content"])
    if db_id not in schemas:
        raise ValueError(f"{record.where}: dataset.tables={tables} has no {db_id!r}")
    text = f"For db_id:[{db_id}]\n\n{schema_text(schemas[db_id])}\n\n{question}"
    messages = [*context, {**user, "content": text}, target]
    return Record(record.where, {**record.fields, "messages": messages})
