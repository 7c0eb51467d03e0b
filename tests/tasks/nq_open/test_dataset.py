"""NQ-Open from every source gives the same pairs."""

import pytest

from erjepa.tasks.nq_open.dataset import (
    LLM_JEPA_DATASETS,
    NQ_OPEN_HUB,
    NQ_OPEN_HUB_REVISION,
    nq_open_dataset,
)
from tests.harness.data import REAL_DATA, chat, remote_calls, write_jsonl

ROWS = [
    {"question": "how many", "answer": ["9"]},
    {"question": "who", "answer": ["Paul", "St. Paul", "Saul"]},
]


@pytest.fixture
def remote(monkeypatch, tmp_path):
    return remote_calls(monkeypatch, tmp_path / "downloaded", ROWS)


def chat_of(row):
    answer = "; ".join(row["answer"])
    return chat(row["question"], answer, "Answer the question below.")


@pytest.mark.parametrize(
    ("answers", "target"), [("joined", "Paul; St. Paul; Saul"), ("first", "Paul")]
)
def test_rows_chats_and_the_hub_give_the_same_pairs(
    answers, target, tokenizer, tmp_path, remote
):
    write_jsonl(tmp_path / "nq_open_test.jsonl", map(chat_of, ROWS))
    expected = nq_open_dataset(
        tokenizer, split="test", source=str(tmp_path), answers=answers
    )
    assert len(expected) == 2 and remote == [] and expected.task == "nq_open"
    assert (expected.source_text(1), expected.target_text(1)) == ("who", target)
    assert expected.target_text(0) == "9"
    rows = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    for source in (rows, NQ_OPEN_HUB):
        mine = nq_open_dataset(tokenizer, source=source, answers=answers)
        assert list(mine) == list(expected)


def test_what_is_asked_of_the_hub_and_of_urls(tokenizer, remote):
    nq_open_dataset(tokenizer, split="test")
    nq_open_dataset(tokenizer, split="validation", source=NQ_OPEN_HUB)
    nq_open_dataset(tokenizer, source="me/copy", revision="abc")
    nq_open_dataset(tokenizer, source="me/copy")
    file = f"{LLM_JEPA_DATASETS}/nq_open_test.jsonl"
    revision = {"revision": NQ_OPEN_HUB_REVISION}
    assert remote == [
        file,
        ((NQ_OPEN_HUB,), {"split": "validation", **revision}),
        (("me/copy",), {"split": "train", "revision": "abc"}),
        (("me/copy",), {"split": "train", "revision": None}),
    ]


@pytest.mark.parametrize("answers", ["joined", "first"])
@pytest.mark.parametrize("answer", [[], [9], None])
def test_an_answer_that_is_none_is_named(answer, answers, tokenizer, tmp_path):
    file = write_jsonl(
        tmp_path / "a.jsonl", [ROWS[0], {"question": "a", "answer": answer}]
    )
    with pytest.raises(ValueError, match="a.jsonl:2: "):
        nq_open_dataset(tokenizer, source=file, answers=answers)


def test_a_sample_of_pairs(tokenizer, tmp_path):
    rows = [{"question": str(i), "answer": "a"} for i in range(50)]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    questions = [
        [sample.source_text(i) for i in range(5)]
        for seed in (None, 1, 1, 2)
        for sample in [
            nq_open_dataset(tokenizer, source=file, max_examples=5, sample_seed=seed)
        ]
    ]
    assert questions[0] == ["0", "1", "2", "3", "4"]
    assert questions[1] == questions[2] != questions[3] != questions[0]


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real NQ-Open")
@pytest.mark.parametrize(("split", "size"), [("train", 8000), ("test", 1769)])
def test_real_nq_open(tokenizer, split, size):
    dataset = nq_open_dataset(tokenizer, split=split, source=str(REAL_DATA / "nq_open"))
    assert len(dataset) == size
    several = sum("; " in dataset.target_text(i) for i in range(size))
    assert several == {"train": 731, "test": 729}[split]
