"""Files that one part writes and another reads."""

import dataclasses
import os
from typing import get_type_hints

import pytest

from erjepa.utils.files import write_whole
from erjepa.utils.jsonl import read_jsonl, to_jsonl
from erjepa.utils.results import (
    Result,
    Split,
    Weights,
    add_results,
    read_results,
    whole_cells,
)


def test_rows_are_read_as_written_each_with_its_place(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"a": 1}, {"a": "é\u2028\n"}, {}]
    path.write_text("\n" + to_jsonl(rows) + " \n")
    places = [f"{path}:{line}" for line in (2, 3, 4)]
    assert list(read_jsonl(path)) == list(zip(places, rows, strict=True))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{'a'}", r"rows.jsonl:3: not JSON \(Expecting .*, column 2\)"),
        (b'{"a": "\xe9"}', r"rows.jsonl:3: not UTF-8 \(byte 0xe9, column 8\).*iconv"),
        (b"[" * 100_000, "rows.jsonl:3: JSON that is nested too deeply"),
        (b"[1]", "rows.jsonl:3: expected a JSON object, got list"),
    ],
)
def test_a_bad_line_is_named_when_it_is_reached(tmp_path, line, error):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    rows = read_jsonl(path)
    assert next(rows)[1] == {"a": 1}
    with pytest.raises(ValueError, match=error):
        next(rows)


def test_a_killed_write_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "whole.txt"
    write_whole(path, "before")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def killed(descriptor):
            raise KeyboardInterrupt

        patch.setattr(os, "fsync", killed)
        write_whole(path, "after")
    assert path.read_text() == "before"
    write_whole(path, "after")
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["whole.txt"]


def result(cell, checkpoint, of):
    """A line whose other fields do not matter here."""
    types = get_type_hints(Result)
    some = {str: "x", int: 0, float: 0.0, Split: "test", Weights: "last"}
    values = {name: some.get(kind, None) for name, kind in types.items()}
    values |= {"overrides": {}, "readings": {}, "metrics": {}}
    return Result(**{**values, "cell": cell, "checkpoint": checkpoint, "of": of})


def test_a_run_that_lost_a_line_is_not_whole(tmp_path):
    path = tmp_path / "results.jsonl"
    assert read_results(tmp_path) == []
    two = [result("a", "flops_0", 2), result("a", "epoch_0", 2)]
    add_results(tmp_path, [*two, result("b", "epoch_0", 1)])
    assert whole_cells(read_results(tmp_path)) == {"a", "b"}
    first, second, third = path.read_text().splitlines(keepends=True)
    path.write_text(first + third)  # a lost line
    assert whole_cells(read_results(tmp_path)) == {"b"}
    path.write_text(first + first)  # the same checkpoint, scored twice
    assert whole_cells(read_results(tmp_path)) == set()
    path.write_text(third + first + second[:-20])  # half a line
    assert whole_cells(read_results(tmp_path)) == {"b"}
    add_results(tmp_path, two)  # does not join it
    assert whole_cells(read_results(tmp_path)) == {"a", "b"}
    path.write_text(first + second[:-20] + "\n" + third)
    with pytest.raises(ValueError, match="results.jsonl:2: not JSON"):
        read_results(tmp_path)


def test_lines_of_before_count_as_whole(tmp_path):
    add_results(tmp_path, [result("a", "epoch_0", 1)])
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text().replace(', "of": 1', ""))
    assert whole_cells(read_results(tmp_path)) == {"a"}


def test_both_kinds_of_weights_count(tmp_path):
    last = result("a", "epoch_0", 2)
    add_results(tmp_path, [dataclasses.replace(last, weights="last")])
    assert whole_cells(read_results(tmp_path)) == set()
    add_results(tmp_path, [dataclasses.replace(last, weights="ema")])
    assert whole_cells(read_results(tmp_path)) == {"a"}
