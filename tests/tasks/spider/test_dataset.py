"""Spider records of every format become pairs that know their database."""

import json

import pytest

from erjepa.datasets.records import Record
from erjepa.tasks.spider import dataset as module
from erjepa.tasks.spider.dataset import (
    in_test_split,
    schema_text,
    spider_dataset,
)
from tests.harness.data import REAL_DATA, chat, write_jsonl

SCHEMA = {
    "db_id": "shop",
    "table_names": ["clerk", "the shop"],
    "table_names_original": ["clerk", "Shop"],
    "column_names": [],
    "column_names_original": [
        [-1, "*"],
        [0, "id"],
        [0, "name"],
        [0, "Shop_ID"],
        [1, "ID"],
    ],
    "column_types": ["text", "number", "text", "number", "number"],
    "primary_keys": [1, 4],
    "foreign_keys": [[3, 4]],
}
SCHEMA_TEXT = (
    "clerk(id number primary key, name text, Shop_ID number)\n"
    "Shop(ID number primary key)\n"
    "clerk.Shop_ID = Shop.ID"
)
ROWS = [
    ("shop", "How many clerks?", "SELECT count(*) FROM clerk"),
    ("shop", "Who?\n\nAll [of]\n\nthem.", "SELECT name FROM clerk"),
    ("zoo", "How many apes?", "SELECT count(*) FROM ape"),
]


def chat_of(db_id, question, query):
    source = f"For db_id:[{db_id}]\n\n{question}"
    return chat(source, query, "Convert natural language to SQL.")


def columns(db_id, question, query):
    return {"db_id": db_id, "query": query, "question": question, "query_toks": []}


def source_texts(dataset):
    return [dataset.source_text(i) for i in range(len(dataset))]


def databases(dataset):
    return [dataset.scoring_fields(i)["db_id"] for i in range(len(dataset))]


def test_chats_columns_and_the_hub_give_the_same_pairs(
    tokenizer, tmp_path, monkeypatch
):
    write_jsonl(tmp_path / "spider_train.jsonl", [chat_of(*row) for row in ROWS])
    of_columns = write_jsonl(
        tmp_path / "columns.jsonl", [columns(*row) for row in ROWS]
    )
    expected = spider_dataset(tokenizer, source=str(tmp_path))
    assert expected.task == "spider"
    assert source_texts(expected)[2] == "For db_id:[zoo]\n\nHow many apes?"
    assert [expected.target_text(i) for i in range(3)] == [row[2] for row in ROWS]
    assert databases(expected) == ["shop", "shop", "zoo"]
    assert list(spider_dataset(tokenizer, source=of_columns)) == list(expected)

    asked = []

    def load_records(source, **options):
        asked.append((source, options))
        return [Record(f"{source}[{i}]", columns(*row)) for i, row in enumerate(ROWS)]

    monkeypatch.setattr(module, "load_records", load_records)
    hub = spider_dataset(tokenizer, source="xlangai/spider", split="validation")
    assert list(hub) == list(expected)
    assert hub.where(1) == "xlangai/spider[1]"
    spider_dataset(tokenizer, source="https://a.b/c/", split="test")
    spider_dataset(tokenizer)
    assert asked == [
        ("xlangai/spider", {"split": "validation", "revision": None}),
        ("https://a.b/c/spider_test.jsonl", {"split": "test", "revision": None}),
        (
            f"{module.LLM_JEPA_DATASETS}/spider_train.jsonl",
            {"split": "train", "revision": None},
        ),
    ]


def test_both_names_of_files_and_a_choice_of_examples(tokenizer, tmp_path):
    write_jsonl(tmp_path / "test.jsonl", [chat_of(*row) for row in ROWS])
    whole = spider_dataset(tokenizer, source=str(tmp_path), split="test")
    first = spider_dataset(
        tokenizer, source=str(tmp_path), split="test", max_examples=2
    )
    assert source_texts(first) == source_texts(whole)[:2]
    some = spider_dataset(
        tokenizer, source=str(tmp_path), split="test", max_examples=2, sample_seed=1
    )
    assert set(source_texts(some)) < set(source_texts(whole)) and len(some) == 2
    with pytest.raises(FileNotFoundError, match="spider_train.jsonl"):
        spider_dataset(tokenizer, source=str(tmp_path))


def test_schema_in_the_prompt(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "train.jsonl", [chat_of(*row) for row in ROWS[:2]])
    tables = tmp_path / "tables.json"
    tables.write_text(json.dumps([SCHEMA]))
    assert schema_text(SCHEMA) == SCHEMA_TEXT
    dataset = spider_dataset(
        tokenizer, source=path, prompt="with_schema", tables=str(tables)
    )
    expected = f"For db_id:[shop]\n\n{SCHEMA_TEXT}\n\nHow many clerks?"
    assert dataset.source_text(0) == expected
    assert dataset.source_text(1).endswith("Shop.ID\n\nWho?\n\nAll [of]\n\nthem.")
    assert databases(dataset) == ["shop", "shop"]
    bare = spider_dataset(tokenizer, source=path, tables=str(tables))
    assert bare.source_text(0) == "For db_id:[shop]\n\nHow many clerks?"
    assert dataset[0].target == bare[0].target
    assert len(dataset[0].source) > len(bare[0].source)


def test_split_by_database(tokenizer, tmp_path):
    rows = [(f"db_{i % 30}", f"Question {i}?", f"SELECT {i}") for i in range(120)]
    write_jsonl(tmp_path / "spider_train.jsonl", [chat_of(*row) for row in rows[:100]])
    write_jsonl(tmp_path / "spider_test.jsonl", [chat_of(*row) for row in rows[100:]])
    train, test = (
        spider_dataset(
            tokenizer, source=str(tmp_path), split=split, split_by="database"
        )
        for split in ("train", "test")
    )
    texts = source_texts(train) + source_texts(test)
    assert sorted(texts) == sorted(f"For db_id:[{d}]\n\n{q}" for d, q, _ in rows)
    tested = set(databases(test))
    assert tested.isdisjoint(databases(train))
    # The split may never change: numbers of models trained on it would mean nothing.
    assert tested == {"db_7", "db_10"}
    assert not in_test_split("department_store")


def test_errors_name_the_key_or_the_record(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "train.jsonl", [chat_of(*row) for row in ROWS])
    tables = tmp_path / "tables.json"
    tables.write_text(json.dumps([SCHEMA]))
    for options, message in (
        ({"split_by": "database"}, "dataset.split_by=database"),
        ({"prompt": "with_schema"}, "dataset.tables is not set"),
        (
            {"prompt": "with_schema", "tables": str(tables)},
            r"train.jsonl:3: dataset.tables=.* has no 'zoo'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            spider_dataset(tokenizer, source=path, **options)
    for content, message in (
        ("[{", ":1: not JSON"),
        ("[{}]", ".*db_id: field required"),
    ):
        tables.write_text(content)
        with pytest.raises(ValueError, match=f"dataset.tables={tables}{message}"):
            spider_dataset(
                tokenizer, source=path, prompt="with_schema", tables=str(tables)
            )
    with pytest.raises(FileNotFoundError, match="dataset.tables="):
        spider_dataset(tokenizer, source=path, prompt="with_schema", tables="/none")
    with pytest.raises(FileNotFoundError):
        spider_dataset(tokenizer, source=str(tmp_path / "none"))
    texts = ("", "How many?", "For db_id:[]\n\nx", " For db_id:[a]\n\nx")
    for record, message in (
        ({"db_id": "shop", "query": "SELECT 1"}, "no field 'question'"),
        *(({"messages": [{"content": text}] * 2}, "starts with") for text in texts),
        ({"messages": []}, "index"),
    ):
        bad = write_jsonl(tmp_path / "bad.jsonl", [chat_of(*ROWS[0]), record])
        with pytest.raises(ValueError, match=f"bad.jsonl:2: .*{message}"):
            spider_dataset(tokenizer, source=bad)


# The real data

SPIDER = REAL_DATA / "spider"


@pytest.mark.skipif(not SPIDER.is_dir(), reason=f"no {SPIDER}")
def test_real_data(tokenizer):
    source, tables = str(SPIDER), str(SPIDER / "tables.json")

    def read(**options):
        return databases(spider_dataset(tokenizer, source=source, **options))

    train, test = (read(split=s, split_by="database") for s in ("train", "test"))
    assert (len(train), len(test)) == (6381, 1653)
    assert (len(set(train)), len(set(test))) == (123, 37)
    assert not set(train) & set(test)
    by_record = read(split="test")
    assert len(by_record) == 1447 and set(by_record) & set(train)
    options = {"prompt": "with_schema", "tables": tables, "max_examples": 50}
    assert read(split="test", **options) == by_record[:50]
