"""GSM8K from every source gives the same pairs."""

import pytest

from erjepa.datasets.sources import subsample
from erjepa.tasks.gsm8k.dataset import GSM8K_REVISION, gsm8k_dataset
from tests.harness.data import REAL_DATA, chat, remote_calls, write_jsonl

ROWS = [
    {"question": f"What is {i} and 1?", "answer": f"{i}+1={i + 1}\n#### {i + 1}"}
    for i in range(6)
]


@pytest.fixture
def remote(monkeypatch, tmp_path):
    return remote_calls(monkeypatch, tmp_path / "downloaded", ROWS)


def chat_of(row):
    system = "Answer the math question, show steps."
    return chat(row["question"], row["answer"], system)


def test_rows_chats_and_the_hub_give_the_same_pairs(tokenizer, tmp_path, remote):
    file = write_jsonl(tmp_path / "rows" / "test.jsonl", ROWS)
    write_jsonl(tmp_path / "chats" / "gsm8k_test.jsonl", map(chat_of, ROWS))
    expected = gsm8k_dataset(tokenizer, source=file)
    assert len(expected) == len(ROWS) and remote == []
    assert expected.task == "gsm8k"
    assert expected.target_text(2) == ROWS[2]["answer"]
    assert expected.source_text(2) == ROWS[2]["question"]
    assert expected.where(2) == f"{file}:3"
    prompt = bytes(t for t in expected.prompt(2) if t < 256).decode()
    assert prompt.startswith("system\n\nAnswer the math question, show steps.user")
    for source in (tmp_path / "rows", tmp_path / "chats"):
        mine = gsm8k_dataset(tokenizer, split="test", source=str(source))
        assert list(mine) == list(expected)
    assert list(gsm8k_dataset(tokenizer)) == list(expected)


def test_what_is_asked_of_the_hub_and_of_urls(tokenizer, remote):
    gsm8k_dataset(tokenizer)
    gsm8k_dataset(tokenizer, split="test", revision="abc")
    gsm8k_dataset(tokenizer, source="me/copy")
    gsm8k_dataset(tokenizer, source="me/own", name=None)
    gsm8k_dataset(tokenizer, split="test", source="https://host/folder/")
    gsm8k_dataset(tokenizer, source="https://host/some.jsonl?raw=1")
    main = {"split": "train", "name": "main"}
    assert remote == [
        (("openai/gsm8k",), {**main, "revision": GSM8K_REVISION}),
        (("openai/gsm8k",), {"split": "test", "name": "main", "revision": "abc"}),
        (("me/copy",), {**main, "revision": None}),
        (("me/own",), {"split": "train", "name": None, "revision": None}),
        "https://host/folder/gsm8k_test.jsonl",
        "https://host/some.jsonl?raw=1",
    ]


def test_what_is_not_there_is_named(tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match="neither train.jsonl nor gsm8k_train"):
        gsm8k_dataset(tokenizer, source=str(tmp_path))
    for source in (str(tmp_path / "no"), "./no"):
        with pytest.raises(FileNotFoundError, match="no: no such file or folder"):
            gsm8k_dataset(tokenizer, source=source)


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"question": "a"}, r"no field 'answer'; the record has \['question'\]"),
        ({"question": "a", "answer": 18}, r"turn 2: content holds 18 \(int\)"),
        ({"question": None, "answer": "18"}, "turn 1: content holds null"),
        ({"messages": []}, "not enough values"),
    ],
)
def test_a_bad_record_is_named(record, error, tokenizer, tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", [ROWS[0], record])
    with pytest.raises(ValueError, match=f"a.jsonl:2: .*{error}"):
        gsm8k_dataset(tokenizer, source=file)


def test_subsample_is_the_same_every_time_and_grows_by_adding():
    items = list(range(1000))
    assert subsample(items, None, None) == items == subsample(items, 2000, 3)
    assert subsample(items, 4, None) == [0, 1, 2, 3]
    small, large = subsample(items, 10, 82), subsample(items, 200, 82)
    assert small == [16, 44, 190, 237, 307, 395, 465, 597, 709, 725]
    assert len(set(large)) == 200 and large == sorted(large) and set(small) < set(large)
    assert subsample(items, 10, 23) != small
    with pytest.raises(ValueError, match="max_examples=0 must be at least 1"):
        subsample(items, 0, None)
    with pytest.raises(ValueError, match="sample_seed=1 needs dataset.max_examples"):
        subsample(items, None, 1)


def test_a_sample_keeps_the_places_of_its_records(tokenizer, tmp_path):
    file = write_jsonl(tmp_path / "a.jsonl", ROWS)
    sample = gsm8k_dataset(tokenizer, source=file, max_examples=3, sample_seed=5)
    lines = subsample(range(1, 7), 3, 5)
    assert [sample.where(i) for i in range(3)] == [f"{file}:{line}" for line in lines]
    assert [pair.example_id for pair in sample] == [0, 1, 2]


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real GSM8K")
@pytest.mark.parametrize(("split", "size"), [("train", 1000), ("test", 1319)])
def test_real_gsm8k(tokenizer, split, size):
    dataset = gsm8k_dataset(
        tokenizer,
        split=split,
        source=str(REAL_DATA / "gsm8k"),
        max_examples=1000 if split == "train" else None,
        sample_seed=82 if split == "train" else None,
    )
    assert len(dataset) == size
    assert all("\n#### " in dataset.target_text(i) for i in range(size))
    lines = [int(dataset.where(i).rsplit(":")[-1]) for i in range(size)]
    assert lines == sorted(set(lines))
    assert (max(lines) > 7000) == (split == "train")
