"""Lines of results: complete runs, and files that were cut off."""

import dataclasses
from typing import get_type_hints

import pytest

from erjepa.studies.results import (
    Result,
    Split,
    Weights,
    add_results,
    read_results,
    whole_cells,
)


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
