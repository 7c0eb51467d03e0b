"""Lines of results, and files that were cut off."""

import dataclasses
import json
from typing import get_type_hints

import pytest

from erjepa.studies.results import Result, Split, Weights, read_results
from erjepa.utils.jsonl import to_jsonl


def result(cell):
    """A line whose other fields do not matter here."""
    types = get_type_hints(Result)
    some = {str: "x", int: 0, float: 0.0, Split: "test", Weights: "last"}
    values = {name: some.get(kind, None) for name, kind in types.items()}
    values |= {"overrides": {}, "readings": {}, "metrics": {}}
    return Result(**{**values, "cell": cell})


def test_a_file_of_results(tmp_path):
    path = tmp_path / "results.jsonl"
    assert read_results(tmp_path) == []
    lines = [result("a"), result("b")]
    path.write_text(to_jsonl(map(dataclasses.asdict, lines)))
    assert read_results(tmp_path) == lines
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + second[:-20])  # half a line
    assert read_results(tmp_path) == lines[:1]
    path.write_text(first + second[:-20] + "\n" + second)
    with pytest.raises(ValueError, match="results.jsonl:2: not JSON"):
        read_results(tmp_path)


def test_lines_of_earlier_versions(tmp_path):
    """They had a key more, and fewer."""
    row = dataclasses.asdict(result("a"))
    del row["target_loss"], row["stage"]
    (tmp_path / "results.jsonl").write_text(json.dumps({**row, "of": 2}) + "\n")
    assert read_results(tmp_path) == [result("a")]
