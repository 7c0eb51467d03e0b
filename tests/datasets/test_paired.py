"""Records of every kind become the same pairs."""

import functools
import http.server
import json
import threading

import datasets
import pytest

from erjepa.datasets import (
    nl_rx_dataset,
    paired_dataset,
    synthetic_nl_rx_dataset,
)
from tests.conftest import REAL_DATA, write_records


def chat(source, target, system=None):
    system = [{"role": "system", "content": system}] if system else []
    turns = [("user", source), ("assistant", target)]
    return {"messages": system + [{"role": r, "content": c} for r, c in turns]}


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


SIDES = [("one", "1"), ("two", "2"), ("three", "3")]


def test_chats_columns_and_renamed_chats_give_the_same_pairs(tokenizer, tmp_path):
    chats = [chat(s, t, "Count.") for s, t in SIDES]
    columns = [{"word": s, "digit": t} for s, t in SIDES]
    renamed = [{"turns": record["messages"]} for record in chats]
    expected = paired_dataset(tokenizer, source=write(tmp_path / "a.jsonl", chats))
    assert len(expected) == 3 and expected[2].example_id == 2
    for name, records, options in (
        ("b", columns, {"column_map": {"input": "word", "output": "digit"}}),
        ("c", renamed, {"column_map": {"messages": "turns"}}),
    ):
        path = write(tmp_path / f"{name}.jsonl", records)
        mine = paired_dataset(
            tokenizer, source=path, new_system_prompt="Count.", **options
        )
        assert list(mine) == list(expected)


def test_prompt_text_and_place_of_an_example(tokenizer, tmp_path):
    path = write(tmp_path / "a.jsonl", [chat(s, f" {t} ") for s, t in SIDES])
    dataset = paired_dataset(tokenizer, source=path, max_examples=2)
    assert len(dataset) == 2
    pair = dataset[1]
    assert dataset.prompt(1) == [*pair.source, *pair.bridge]
    assert (dataset.source_text(1), dataset.target_text(1)) == ("two", "2")
    assert dataset.where(1) == f"{path}:2"


def test_a_missing_column_is_named(tokenizer, tmp_path):
    path = write(tmp_path / "a.jsonl", [{"word": "one"}])
    with pytest.raises(ValueError, match=r"a.jsonl:1: no field 'digit'.*\['word'\]"):
        paired_dataset(
            tokenizer, source=path, column_map={"input": "word", "output": "digit"}
        )


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder, and the URL at which it is served."""
    for cache in ("HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, cache, str(tmp_path / "cache"))
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=tmp_path
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_url_gives_the_pairs_of_its_file(tokenizer, served):
    folder, url = served
    write_records(folder / "synth_train.jsonl", 5)
    local = nl_rx_dataset(tokenizer, source=str(folder))
    remote = nl_rx_dataset(tokenizer, source=url)
    assert list(remote) == list(local) and len(remote) == 5
    assert remote.where(3) == f"{url}/synth_train.jsonl[3]"


def test_a_url_that_cannot_be_read(tokenizer, served):
    with pytest.raises(
        ConnectionError, match="turk_test.jsonl could not be read .* copy"
    ):
        nl_rx_dataset(tokenizer, source=served[1], subset="turk", split="test")


def test_nl_rx_has_two_subsets_and_two_splits(tokenizer):
    for key, value in (("subset", "deep"), ("split", "dev")):
        with pytest.raises(ValueError, match=f"dataset.{key}={value}: NL-RX has"):
            nl_rx_dataset(tokenizer, **{key: value})


def test_synthetic_pairs_say_where_they_come_from(tokenizer):
    train = synthetic_nl_rx_dataset(tokenizer, size=20)
    test = synthetic_nl_rx_dataset(tokenizer, size=20, split="test")
    assert len(train) == len(test) == 20
    assert test.where(3) == "nl_rx_grammar[test, seed 0][3]"
    texts = [{d.target_text(i) for i in range(20)} for d in (train, test)]
    assert not texts[0] & texts[1]


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real NL-RX")
@pytest.mark.parametrize("subset", ["synth", "turk"])
@pytest.mark.parametrize(("split", "size"), [("train", 8000), ("test", 2000)])
def test_real_nl_rx(tokenizer, subset, split, size):
    dataset = nl_rx_dataset(
        tokenizer, subset=subset, split=split, source=str(REAL_DATA / "nl_rx")
    )
    assert len(dataset) == size
    for i in (0, size - 1):
        # One token a byte: the target's tokens spell the target.
        assert bytes(list(dataset[i].target[:-1])).decode() == dataset.target_text(i)
        spelled = bytes(t for t in dataset[i].source_view if t < 256).decode()
        assert spelled.endswith(dataset.source_text(i))
