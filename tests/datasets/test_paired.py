"""Records of every format become the same pairs."""

import pytest
from torchtune.data import InputOutputToMessages

from erjepa.datasets import PairedDataset, Record, paired_dataset
from tests.harness.data import chat, write_jsonl

SIDES = [("one", "1"), ("two", "2"), ("three", "3")]


def test_chats_columns_and_renamed_chats_give_the_same_pairs(tokenizer, tmp_path):
    chats = [chat(s, t, "Count.") for s, t in SIDES]
    columns = [{"word": s, "digit": t} for s, t in SIDES]
    renamed = [{"turns": record["messages"]} for record in chats]
    expected = paired_dataset(
        tokenizer, source=write_jsonl(tmp_path / "a.jsonl", chats)
    )
    assert len(expected) == 3 and expected[2].example_id == 2
    for name, records, options in (
        ("b", columns, {"column_map": {"input": "word", "output": "digit"}}),
        ("c", renamed, {"column_map": {"messages": "turns"}}),
    ):
        path = write_jsonl(tmp_path / f"{name}.jsonl", records)
        mine = paired_dataset(
            tokenizer, source=path, new_system_prompt="Count.", **options
        )
        assert list(mine) == list(expected)


def test_prompt_text_and_place_of_an_example(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [chat(s, f" {t} ") for s, t in SIDES])
    dataset = paired_dataset(tokenizer, source=path, max_examples=2)
    assert len(dataset) == 2
    pair = dataset[1]
    assert dataset.prompt(1) == [*pair.source, *pair.bridge]
    assert (dataset.source_text(1), dataset.target_text(1)) == ("two", "2")
    assert dataset.where(1) == f"{path}:2"
    assert dataset.task == "exact_match"


def test_a_missing_column_is_named(tokenizer, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"word": "one"}])
    with pytest.raises(
        ValueError, match=r"a.jsonl:1: no field 'digit'.*\['word'\].*column_map.output"
    ):
        paired_dataset(
            tokenizer, source=path, column_map={"input": "word", "output": "digit"}
        )


def test_an_error_names_all_bad_records(tokenizer, tmp_path):
    good = {"input": "a", "output": "b"}
    bad = [{"input": "a", "output": ""}, {"input": None, "output": "b"}, {"input": "a"}]
    path = write_jsonl(tmp_path / "a.jsonl", [good, *bad, good])
    with pytest.raises(ValueError) as raised:
        paired_dataset(tokenizer, source=path)
    first = f"{path}:2: column 'output' is empty"
    assert str(raised.value) == f"{first}; 2 more bad records: {path}:3, {path}:4"
    path = write_jsonl(tmp_path / "b.jsonl", [good, *bad * 5])
    with pytest.raises(ValueError, match="; 14 more bad records: .*b.jsonl:12, ...$"):
        paired_dataset(tokenizer, source=path)


def test_scoring_fields_are_read_from_the_record(tokenizer):
    records = [
        Record(f"row {i}", {"input": "a", "output": "b", "unit": unit})
        for i, unit in enumerate(("km", "mm"))
    ]
    dataset = PairedDataset(
        records,
        tokenizer,
        InputOutputToMessages(),
        scoring_fields=lambda fields: {"unit": fields["unit"]},
    )
    assert [dataset.scoring_fields(i)["unit"] for i in (0, 1)] == ["km", "mm"]
