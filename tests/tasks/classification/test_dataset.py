"""Files of texts and labels become prompts with the labels as options."""

from collections import Counter

import pytest
import yaml

from erjepa.datasets import Record
from erjepa.tasks.classification import dataset
from erjepa.tasks.classification.dataset import classification_dataset
from tests.harness.data import REAL_DATA, write_jsonl

ROWS = [
    {"review": f" text {i} ", "stars": stars, "id": i}
    for i, stars in enumerate([5, 1, 5, 5, 3, 5, 1, 5])
]
KEYS = {"text": "review", "label": "stars"}


def test_a_prompt_has_question_options_and_text(tokenizer, tmp_path):
    source = write_jsonl(tmp_path / "reviews.jsonl", ROWS)
    pairs = classification_dataset(
        tokenizer, source=source, **KEYS, question="How many?"
    )
    assert len(pairs) == len(ROWS) and pairs.task == "classification"
    prompt = "How many? Answer with one of the options.\nOptions: 1, 3, 5\n\n"
    assert pairs.source_text(4) == prompt + "text 4"
    assert (pairs.target_text(4), pairs.where(4)) == ("3", f"{source}:5")
    assert [m.role for m in pairs.messages(4)] == ["user", "assistant"]
    assert pairs.ask("text 4") == pairs.prompt(4)


def test_nested_columns(tokenizer, tmp_path):
    rows = [{"film": {"review": "a"}, "vote": {"stars": i}} for i in (1, 2)]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    keys = {"text": "film.review", "label": "vote.stars"}
    dataset = classification_dataset(tokenizer, source=source, **keys)
    assert [dataset.target_text(i) for i in range(2)] == ["1", "2"]


def test_a_folder_holds_splits_and_options_are_labels_to_keep(tokenizer, tmp_path):
    write_jsonl(tmp_path / "test.jsonl", ROWS)
    keys = {"source": str(tmp_path), "split": "test", "options": [5, "1"], **KEYS}
    for size, expected in ((None, "5155515"), (5, "51555")):
        pairs = classification_dataset(tokenizer, max_examples=size, **keys)
        assert [pairs.target_text(i) for i in range(len(pairs))] == [*expected]
        assert "Options: 5, 1\n" in pairs.source_text(0)


def test_rows_of_the_hub(tokenizer, monkeypatch):
    """Of a configuration and a revision; labels may be booleans or have white space."""
    asked = {"name": "few", "revision": "0a1b2c"}

    def load_records(source, **keys):
        assert (source, keys) == ("org/data", {"split": "train", **asked})
        for i, label in enumerate([True, " no "]):
            yield Record(f"row {i}", {"text": "a text", "label": label})

    monkeypatch.setattr(dataset, "load_records", load_records)
    pairs = classification_dataset(tokenizer, source="org/data", **asked)
    assert "Options: True, no\n" in pairs.source_text(0)


@pytest.mark.parametrize("seed", [None, 0])
def test_as_many_of_each_label(seed, tokenizer, tmp_path):
    source = write_jsonl(tmp_path / "reviews.jsonl", ROWS)
    own = {"source": source, "sample_seed": seed, "balanced": True, **KEYS}
    kept = {}
    for size, expected in (
        (3, {"5": 1, "1": 1, "3": 1}),
        (5, {"5": 2, "1": 2, "3": 1}),
        (7, {"5": 4, "1": 2, "3": 1}),
        (99, {"5": 5, "1": 2, "3": 1}),
    ):
        pairs = classification_dataset(tokenizer, max_examples=size, **own)
        ids = range(len(pairs))
        assert Counter(map(pairs.target_text, ids)) == expected
        assert "Options: 1, 3, 5\n" in pairs.source_text(0)
        before, kept = kept, {pairs.where(i) for i in ids}
        assert kept.issuperset(before)
        is_first_of_each = kept == {f"{source}:{line}" for line in (1, 2, 5)}
        assert is_first_of_each == (size == 3 and seed is None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"stars": 1}, "no column 'review'; it has ['stars']. Set dataset.text to"),
        ({"review": "a"}, "no column 'stars'; it has ['review']. Set dataset.label to"),
        ({"review": " ", "stars": 1}, "column 'review' is empty"),
        ({"review": ["a"], "stars": 1}, "column 'review' holds ['a'] (list)"),
        ({"review": "a", "stars": None}, "column 'stars' holds null; expected a text"),
        ({"review": "a", "stars": 0.5}, "column 'stars' holds 0.5 (float)"),
    ],
)
def test_what_is_no_text_with_a_label_is_named(row, message, tokenizer, tmp_path):
    source = write_jsonl(tmp_path / "reviews.jsonl", [ROWS[0], row])
    with pytest.raises(ValueError, match="reviews.jsonl:2: ") as error:
        classification_dataset(tokenizer, source=source, **KEYS)
    assert message in str(error.value)


def test_options_that_no_record_has(tokenizer, tmp_path):
    source = write_jsonl(tmp_path / "reviews.jsonl", ROWS)
    with pytest.raises(ValueError, match=r"dataset.options=\['6'\].*no record is left"):
        classification_dataset(tokenizer, source=source, options=["6"], **KEYS)


def test_options_without_quotes(tokenizer, tmp_path):
    rows = [{"text": "a", "label": label} for label in ("yes", "no")]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    options = yaml.safe_load("[yes, no]")
    with pytest.raises(ValueError, match="quote yes, no, .*; no record is left"):
        classification_dataset(tokenizer, source=source, options=options)


def test_balance_needs_a_number_of_pairs_to_keep(tokenizer, tmp_path):
    source = write_jsonl(tmp_path / "reviews.jsonl", ROWS)
    with pytest.raises(ValueError, match="balanced=True needs dataset.max_examples"):
        classification_dataset(tokenizer, source=source, balanced=True, **KEYS)


@pytest.mark.skipif(
    not (REAL_DATA / "text_classification").is_dir(), reason="needs the real datasets"
)
def test_training_and_test_rows_have_the_same_options(tokenizer):
    folder = REAL_DATA / "text_classification"
    for source in (folder / "cb", folder / "copa", folder / "sst2"):
        train, test = (
            classification_dataset(
                tokenizer, source=str(source), split=split, max_examples=1
            ).source_text(0)
            for split in ("train", "test")
        )
        assert train.splitlines()[1] == test.splitlines()[1]
