"""Every file format is read the same way, and errors name the place."""

import csv
import json
import re

import datasets
import huggingface_hub
import pyarrow
import pytest
from pyarrow import parquet

from erjepa.datasets import load_records
from erjepa.utils import hub
from tests.harness.data import write_jsonl

ROWS = [
    {"word": "one", "digit": "1"},
    {"word": 't,w"o\né', "digit": "007"},
    {"word": "three", "digit": "NA"},
]


def write_lines(path):
    write_jsonl(path, ROWS)


def write_array(path):
    path.write_text(json.dumps(ROWS, indent=2, ensure_ascii=False))


def write_table(path, delimiter=","):
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, ROWS[0], delimiter=delimiter)
        table.writeheader()
        table.writerows(ROWS)


def write_parquet(path):
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)


FILES = {
    "a.jsonl": (write_lines, ":3"),
    "a.ndjson": (write_lines, ":3"),
    "lines.json": (write_lines, ":3"),
    "a.json": (write_array, "[2]"),
    # The second row takes two lines.
    "a.csv": (write_table, ":5"),
    "A.CSV": (write_table, ":5"),
    "a.tsv": (lambda path: write_table(path, "\t"), ":5"),
    "semicolons.csv": (lambda path: write_table(path, ";"), ":5"),
    "tabs.csv": (lambda path: write_table(path, "\t"), ":5"),
    "a.parquet": (write_parquet, "[2]"),
}


def rows_of(source, split="train"):
    return [record.fields for record in load_records(str(source), split=split)]


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, name):
    write, place = FILES[name]
    write(tmp_path / name)
    records = load_records(str(tmp_path / name))
    assert [fields for _, fields in records] == ROWS
    assert records[2].where == f"{tmp_path / name}{place}"


@pytest.mark.parametrize(
    ("content", "columns", "cells"),
    [
        ("Frage (kurz, klar);Antwort\na?;1\n", ["Frage (kurz, klar)", "Antwort"], 1),
        ("a; b,c\n1;2,3\n\n4,5\n", ["a; b", "c"], 2),
        ('"a\nb; c",d\n1,2\n', ["a\nb; c", "d"], 1),
        ('a\tb\n"1, 2; 3"\t4; 5, 6\n', ["a", "b"], 1),
        ("text\none, two\n", None, "2: 2 cells, but 1 columns .*, separated by ','"),
        ("a;b\n1;2;3\n", None, "2: 3 cells, but 2 columns .*, separated by ';'"),
        ('a;b\n1;"2\n', None, "a.csv:2: not a row"),
    ],
)
def test_the_delimiter_is_the_one_that_gives_equal_rows(
    tmp_path, content, columns, cells
):
    (tmp_path / "a.csv").write_text(content)
    if columns is None:
        with pytest.raises(ValueError, match=cells):
            load_records(str(tmp_path / "a.csv"))
        return
    assert [list(row) for row in rows_of(tmp_path / "a.csv")] == [columns] * cells


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    for name in ("a.csv", "a.jsonl", "a.json"):
        path = tmp_path / name
        FILES[name][0](path)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert rows_of(path) == ROWS


def test_folders(tmp_path):
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    splits = datasets.DatasetDict({"train": rows, "test": rows.select([2])})
    splits.save_to_disk(tmp_path / "splits")
    (tmp_path / "files").mkdir()
    write_table(tmp_path / "files" / "train.csv")
    for name, place in (("one", "[1]"), ("splits", "[1]"), ("files", "/train.csv:3")):
        records = load_records(str(tmp_path / name))
        assert [fields for _, fields in records] == ROWS
        assert records[1].where == f"{tmp_path / name}{place}"
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.csv").write_text("input,output\n007,NA\n")
    (tmp_path / "tables" / "b.csv").write_text("input,output\n1.50,true\n")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.csv").write_text("input,output\n1\n")
    with pytest.raises(ValueError, match=r"bad/a.csv:2: 1 cells, but 2 columns"):
        load_records(str(tmp_path / "bad"))
    assert rows_of(tmp_path / "tables") == [
        {"input": "007", "output": "NA"},
        {"input": "1.50", "output": "true"},
    ]
    assert rows_of(tmp_path / "splits", split="test") == [ROWS[2]]
    with pytest.raises(ValueError, match=r"no split 'dev'; it has \['train', 'test'\]"):
        load_records(str(tmp_path / "splits"), split="dev")
    write_lines(tmp_path / "files" / "train.jsonl")
    with pytest.raises(
        ValueError,
        match="files has several files of split 'train', train.jsonl, train.csv",
    ):
        load_records(str(tmp_path / "files"))
    (tmp_path / "damaged").mkdir()
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / "damaged" / name).write_text("{}")
    with pytest.raises(ValueError, match="damaged could not be read"):
        load_records(str(tmp_path / "damaged"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty could not be read .*train.jsonl"):
        load_records(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("loaded", "has"),
    [
        ("train", "train"),
        ("test", "test"),
        ("train[:50%]", "train"),
        ("train[:1]+test[:1]", "train+test"),
    ],
)
def test_a_saved_dataset_has_the_split_that_it_was_loaded_as(tmp_path, loaded, has):
    rows = datasets.Dataset.from_list(ROWS, split=loaded)
    rows.save_to_disk(tmp_path)
    assert rows_of(tmp_path, split=has) == ROWS
    for other in ("validation", "validation[:50%]", "all"):
        with pytest.raises(ValueError, match=rf"no split .*'{re.escape(has)}'\]. Set"):
            load_records(str(tmp_path), split=other)


def test_a_saved_dataset_without_a_split_has_any(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path)
    for split in ("train", "test"):
        assert rows_of(tmp_path, split=split) == ROWS
    assert len(load_records(str(tmp_path), split="test[-1:]")) == 1


@pytest.mark.parametrize("names", [("train", "test"), ("a-train", "a-test")])
def test_parts_of_the_splits_of_a_folder(tmp_path, names):
    for name in names:
        cells = "".join(f"00{i},{name}\n" for i in range(4))
        (tmp_path / f"{name}.csv").write_text(f"input,output\n{cells}")
    records = load_records(str(tmp_path), split="test[:50%]+train[-1:]")
    assert [r.fields["input"] for r in records] == ["000", "001", "003"]
    assert records[2].where == f"{tmp_path}/{names[0]}.csv:5"
    both = rows_of(tmp_path, split="train+test")
    assert [row["input"] for row in both] == ["000", "001", "002", "003"] * 2
    for split in ("train[:5", "train[a:]"):
        with pytest.raises(ValueError, match=rf"dataset.split={re.escape(split)}: "):
            load_records(str(tmp_path), split=split)


def test_a_file_has_no_parts(tmp_path):
    """Training pairs and test pairs would otherwise be the same ones."""
    file = tmp_path / "all.jsonl"
    file.write_text('{"input": "a", "output": "b"}\n')
    assert len(load_records(str(file), split="test")) == 1
    for source in (str(file), "https://host/all.jsonl"):
        with pytest.raises(
            ValueError, match=r"split=train\[:80%\]: .*all.jsonl is a file"
        ):
            load_records(source, split="train[:80%]")


TEXTS = pyarrow.array(["x", "y"])
NOT_UTF8 = pyarrow.Array.from_buffers(
    *(pyarrow.string(), 2),
    [
        None,
        pyarrow.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])),
        pyarrow.py_buffer(b"a\xff"),
    ],
)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.jsonl", b'{"a": "1"}\n{"a": \n', r"a.jsonl:2: not JSON .* column 6"),
        (
            "a.jsonl",
            b'{"a": "1"}\n["b"]\n',
            "a.jsonl:2: expected a JSON object, got li",
        ),
        ("a.jsonl", b'{}\n{"a": "caf\xe9"}\n', "a.jsonl:2: not UTF-8 .* column 11"),
        ("a.jsonl", b"\n", "a.jsonl: no records"),
        ("a.json", b'[{"a": "1"},\n {"b" 1}]', r"a.json:2: not JSON .* column 7"),
        ("a.json", b'[{"a": "1"},\n {"\xe9"}]', r"a.json:2: not UTF-8 .* column 4"),
        ("a.json", b'[{"a": "1"}, 7]', r"a.json\[1\]: expected a JSON object, got int"),
        ("a.json", b'{"data":\n[]}', "a.json:1: not JSON"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"a.csv:3: 3 cells, but 2 columns .*'a', 'b'"),
        ("a.csv", b"a,b\n1,2\n1\n", "a.csv:3: 1 cells, but 2 columns"),
        ("a.csv", b'a,b\n1,2\n1,"2\n\n', "a.csv:3: not a row"),
        ("a.csv", b"a,b\n1,caf\xe9\n", "a.csv:2: not UTF-8 .* column 6.*iconv"),
        ("a.csv", "a,b\n1,2\n".encode("utf-16"), "a.csv:1: not UTF-8 .*-f UTF-16"),
        ("a.csv", b"a,a\n1,2\n", "a.csv:1: the first line names the columns"),
        ("a.csv", b"a,b\n", "a.csv: no records"),
        *(
            (name, before + value + b"}" * (name == "a.jsonl"), error)
            for name, before, place in (
                ("a.jsonl", b'{"a": 1}\n{"a": ', "a.jsonl:2: "),
                ("a.json", b'[{"a": "1"}, ', "a.json: "),
            )
            for value, error in (
                (b"9" * 5000, f"{place}JSON that cannot be read .*4300 digits"),
                (b"[" * 10**5, f"{place}JSON that cannot be read"),
            )
        ),
        ("a.parquet", b"PAR1", "a.parquet: not a parquet file"),
        ("a.xlsx", b"PK", "a.xlsx: expected a file .jsonl, .*; save its table as CSV"),
    ],
)
def test_bad_files(tmp_path, name, content, error):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=error) as raised:
        load_records(str(tmp_path / name))
    assert str(raised.value).startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ({"a": NOT_UTF8}, "Column 0: .* Invalid UTF8 sequence at string index 1"),
        ({"a": TEXTS, " a": TEXTS}, "columns .'a', 'a'., not each once"),
        (
            {"s": pyarrow.StructArray.from_arrays([TEXTS, TEXTS], ["a", "a"])},
            "duplicate field names",
        ),
    ],
)
def test_bad_columns_of_parquet(tmp_path, arrays, error):
    names = [name.strip() for name in arrays]
    table = pyarrow.Table.from_arrays(list(arrays.values()), names)
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=f"a.parquet: not a .*{error}") as raised:
        load_records(str(tmp_path / "a.parquet"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "source",
    ["/absent.csv", "absent.parquet", "a/absent.xlsx", "/no", "no", "no/", "~/no/no"],
)
def test_a_source_that_is_not_there(source):
    with pytest.raises(FileNotFoundError) as raised:
        load_records(source)
    assert str(raised.value).startswith(f"{source.rstrip('/')}: no such file or folder")


def test_the_suffix_of_a_url_is_that_of_its_path(monkeypatch, tmp_path):
    def download(manager, url):
        write_table(tmp_path / "file", "\t")
        return str(tmp_path / "file")

    monkeypatch.setattr(datasets.DownloadManager, "download", download)
    assert rows_of("https://host/a.tsv?download=true") == ROWS


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch, tmp_path):
    """Not with the retries of half a minute; what it sent before is read from its cache."""
    asked = []
    monkeypatch.setattr(hub, "get_session", lambda: asked.append(1))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(ConnectionError, match="data/pairs is no file or folder here"):
        load_records("data/pairs")
    assert len(asked) == 1
    assert not datasets.config.HF_HUB_OFFLINE, "a URL may still be read"
