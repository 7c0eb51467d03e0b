"""The rows of the sequences of text classification, from a clone of O-LoRA's code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from erjepa.utils.jsonl import read_jsonl
from scripts.cl_benchmark import TASKS

SCRIPT = Path(__file__).parents[1] / "scripts" / "cl_benchmark.py"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone whose texts say their file and position."""
    folder = tmp_path_factory.mktemp("clone")
    for place in TASKS.values():
        for split, size in (("train", 2000), ("test", 2500)):
            rows = [{"sentence": f"{split} é {i}", "label": "A"} for i in range(size)]
            file = folder / "CL_Benchmark" / place / f"{split}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(rows), encoding="utf-8")
    return folder


def convert(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def texts(clone, tmp_path_factory):
    """Source file and position of the rows of each split."""
    output = tmp_path_factory.mktemp("output")
    assert convert(clone, output).returncode == 0

    def of(task, split):
        rows = [row for _, row in read_jsonl(output / task / f"{split}.jsonl")]
        assert {row["label"] for row in rows} == {"A"}
        found = [row["text"].split(" é ") for row in rows]
        (file,) = {file for file, _ in found}
        return file, [int(position) for _, position in found]

    return of


def test_the_tasks_are_those_of_the_experiment():
    config = Path(__file__).parents[1] / "configs" / "experiments" / "long_cl.yaml"
    assert sorted(yaml.safe_load(config.read_text())["order"]) == [*TASKS]


def test_the_original_splits_are_in_the_order_of_the_studies(texts):
    file, train = texts("sst2", "train")
    assert file == "train" and train[:4] == [1748, 1361, 1671, 865]
    assert sorted(train) == [*range(2000)]
    file, test = texts("sst2", "test")
    assert file == "test" and len({*test}) == 1000


@pytest.mark.parametrize("task, held_out", [("imdb", 500), ("yelp", 1000)])
def test_test_rows_can_be_held_out_of_the_training_file(texts, task, held_out):
    (file, train), (from_file, test) = texts(task, "train"), texts(task, "test")
    assert file == from_file == "train" and len(test) == held_out
    assert test[:4] == [1748, 1361, 1671, 865]
    assert sorted(train + test) == [*range(2000)]


def test_both_splits_of_dbpedia_come_from_its_test_file(texts):
    (file, train), (from_file, test) = (
        texts("dbpedia", "train"),
        texts("dbpedia", "test"),
    )
    assert file == from_file == "test"
    assert len(train) == 500 and len(test) == 1000
    assert len({*train, *test}) == 1500


def test_another_folder_is_refused(tmp_path):
    done = convert(tmp_path, tmp_path / "output")
    assert done.returncode == 1
    assert f"no such file; is {tmp_path} a clone of O-LoRA?" in done.stderr
    assert (
        convert(tmp_path).stderr
        == "usage: python scripts/cl_benchmark.py CLONE FOLDER\n"
    )
