"""Large datasets are tokenized once, in parallel, and cached, without changing the pairs."""

import importlib
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest

from erjepa.datasets import paired_dataset, tokenized
from tests.harness.data import write_jsonl

ROWS = [{"input": f"say {'é' * (i % 7)} {i}", "output": str(i)} for i in range(1200)]


@pytest.fixture
def many(tmp_path, monkeypatch):
    """A file of pairs that count as many, and the folder where their tokens are kept."""
    monkeypatch.setattr(tokenized, "MANY", 1000)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = write_jsonl(tmp_path / "a.jsonl", ROWS)
    return source, tmp_path / "cache" / "erjepa"


def kept(folder):
    return sorted(file.name for file in folder.glob("*.npy"))


@pytest.fixture
def one_by_one(tokenizer, many, monkeypatch):
    """The pairs, neither made in parallel nor kept."""
    with monkeypatch.context() as patch:
        patch.setattr(tokenized, "MANY", 10**9)
        dataset = paired_dataset(tokenizer, source=many[0], new_system_prompt="Hm.")
    assert not many[1].exists()
    return list(dataset)


def never(*args):
    raise AssertionError("tokenized again")


def test_pairs_are_made_once(tokenizer, many, one_by_one, monkeypatch):
    source, folder = many
    options = {"source": source, "new_system_prompt": "Hm."}
    assert list(paired_dataset(tokenizer, **options)) == one_by_one
    assert len(kept(folder)) == 1
    monkeypatch.setattr(tokenized, "_in_parallel", never)
    again = paired_dataset(tokenizer, **options)
    assert list(again) == one_by_one
    assert [again[i] for i in (-1, 7)] == [one_by_one[-1], one_by_one[7]]
    assert again.pairs[3:5] == one_by_one[3:5]
    for outside in (len(ROWS), -len(ROWS) - 1):
        with pytest.raises(IndexError, match=f"pair {outside} of 1200"):
            again[outside]
    assert pickle.loads(pickle.dumps(again.pairs))[1100] == one_by_one[1100]


def test_it_is_mapped_not_copied(tokenizer, many):
    paired_dataset(tokenizer, source=many[0])
    (block,) = paired_dataset(tokenizer, source=many[0]).pairs._blocks
    assert isinstance(block, np.memmap)


def test_another_prompt_or_tokenizer_or_record_is_made_anew(tokenizer, many, base):
    source, folder = many
    sizes = []
    path = Path(source)
    for change in (
        lambda: {},
        lambda: {"new_system_prompt": "Hm."},
        lambda: path.write_text(path.read_text().replace("say", "tell", 1)) and {},
    ):
        paired_dataset(tokenizer, source=source, **change())
        sizes.append(len(kept(folder)))
    other = pickle.loads(pickle.dumps(tokenizer))
    other.special_tokens = {**other.special_tokens, "<|step_id|>": 3}
    paired_dataset(other, source=source)
    sizes.append(len(kept(folder)))
    assert sizes == [1, 2, 3, 4]


def test_a_tokenizer_whose_code_has_changed_is_another(tmp_path, monkeypatch):
    file = tmp_path / "own_tokenizer.py"
    file.write_text("class Own:\n    name = 'own'\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_tokenizer").Own()
    before = tokenized._cache_file(["a"], own)
    assert tokenized._cache_file(["a"], own) == before
    file.write_text(file.read_text() + "    def encode(self): ...\n")
    assert tokenized._cache_file(["a"], own) != before


@pytest.mark.slow
def test_a_hash_is_that_of_every_process(tokenizer, base):
    code = f"""
from torchtune.models.llama3 import llama3_tokenizer
from erjepa.datasets import tokenized
base = {str(base)!r}
tokenizer = llama3_tokenizer(
    base + "/tokenizer.model", special_tokens_path=base + "/special_tokens.json"
)
print(tokenized._cache_file(["a", "b"], tokenizer).name)
"""
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    name = tokenized._cache_file(["a", "b"], tokenizer).name
    assert other.stdout.splitlines()[-1] == name


def test_a_cut_file_is_made_anew(tokenizer, many, one_by_one):
    source, folder = many
    options = {"source": source, "new_system_prompt": "Hm."}
    paired_dataset(tokenizer, **options)
    (name,) = kept(folder)
    content = (folder / name).read_bytes()
    for cut in (content[:-1], content[: len(content) // 2], b"", b"some"):
        (folder / name).write_bytes(cut)
        assert tokenized._read(folder / name) is None
    assert list(paired_dataset(tokenizer, **options)) == one_by_one
    assert tokenized._read(folder / name) is not None


def test_a_folder_that_cannot_be_written_costs_no_run(
    tokenizer, many, one_by_one, caplog
):
    source, folder = many
    folder.parent.write_text("a file in its place")
    tokenized.log.propagate = True
    dataset = paired_dataset(tokenizer, source=source, new_system_prompt="Hm.")
    assert list(dataset) == one_by_one
    assert "tokens are not cached" in caplog.text


def test_a_full_disk_costs_no_run(tokenizer, many, one_by_one, monkeypatch, caplog):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    tokenized.log.propagate = True
    dataset = paired_dataset(tokenizer, source=many[0], new_system_prompt="Hm.")
    assert list(dataset) == one_by_one
    assert "No space left on device" in caplog.text
    assert {file.suffix for file in many[1].iterdir()} == {".lock"}


def test_a_tokenizer_without_a_hash_is_used_all_the_same(
    tokenizer, many, monkeypatch, caplog
):
    def no_hash(value):
        raise pickle.PicklingError("no")

    monkeypatch.setattr(datasets.fingerprint.Hasher, "hash", no_hash)
    tokenized.log.propagate = True
    assert len(paired_dataset(tokenizer, source=many[0])) == len(ROWS)
    assert "Llama3Tokenizer cannot be hashed (no)" in caplog.text
    assert not many[1].exists()


def _open(source, results):
    tokenized.MANY = 1000
    made = []
    original = tokenized._in_parallel

    def counted(*args):
        made.append(1)
        return original(*args)

    tokenized._in_parallel = counted
    dataset = paired_dataset(_tokenizer, source=source)
    results.put((len(made), dataset[1199].target.tobytes()))


def test_ranks_share_what_one_of_them_makes(tokenizer, many):
    global _tokenizer
    _tokenizer = tokenizer
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    ranks = [context.Process(target=_open, args=(many[0], results)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    made, targets = zip(*(results.get() for _ in ranks), strict=True)
    for rank in ranks:
        rank.join()
    assert sum(made) == 1 and len(set(targets)) == 1


@pytest.mark.slow
def test_processes_may_be_spawned(tokenizer, many, one_by_one, monkeypatch):
    spawn = multiprocessing.get_context("spawn")
    monkeypatch.setattr(tokenized, "get_context", lambda: spawn)
    dataset = paired_dataset(tokenizer, source=many[0], new_system_prompt="Hm.")
    assert list(dataset) == one_by_one


def test_a_chat_that_gives_no_pair_is_named(tokenizer, many, monkeypatch):
    bad = tokenized.ChatTemplate.__call__

    def fail(template, messages):
        if messages[-1].text_content == "1100":
            raise ValueError("no pair")
        return bad(template, messages)

    monkeypatch.setattr(tokenized.ChatTemplate, "__call__", fail)
    fork = multiprocessing.get_context("fork")  # whose processes see it
    monkeypatch.setattr(tokenized, "get_context", lambda: fork)
    with pytest.raises(ValueError, match="a.jsonl:1101: no pair"):
        paired_dataset(tokenizer, source=many[0])


def killed(texts):
    os._exit(1)


def test_a_killed_process_ends_in_an_error(tokenizer, many, monkeypatch):
    monkeypatch.setattr(tokenized, "_tokenize", killed)
    with pytest.raises(RuntimeError, match="was killed, probably for lack of memory"):
        paired_dataset(tokenizer, source=many[0])


def test_a_bad_record_is_found_before_any_is_tokenized(tokenizer, many, monkeypatch):
    path = Path(many[0])
    path.write_text(path.read_text() + '{"input": "a", "output": null}\n')
    monkeypatch.setattr(tokenized, "_in_parallel", never)
    with pytest.raises(ValueError, match="a.jsonl:1201: column 'output' holds null"):
        paired_dataset(tokenizer, source=many[0])
