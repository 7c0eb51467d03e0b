"""Write the datasets of the experiments ``standard_cl*`` and ``long_cl*`` from a clone of O-LoRA's code:

    git clone --depth 1 https://github.com/cmnfriend/O-LoRA
    python scripts/cl_benchmark.py O-LoRA FOLDER

Each task becomes ``FOLDER/TASK/train.jsonl`` and ``test.jsonl``, with a text and a label per line.
The splits are O-LoRA's, shuffled and cut to 5000 training and 1000 test rows, except for four tasks:
both splits of DBpedia come from its test file, and the test rows of IMDB, MultiRC and Yelp from
their training files. Training and test rows of MultiRC can therefore share paragraphs. The studies
in docs/results use these rows.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

TASKS = {
    "agnews": "TC/agnews",
    "amazon": "SC/amazon",
    "boolq": "BoolQA/BoolQA",
    "cb": "NLI/CB",
    "copa": "COPA/COPA",
    "dbpedia": "TC/dbpedia",
    "imdb": "SC/IMDB",
    "mnli": "NLI/MNLI",
    "multirc": "MultiRC/MultiRC",
    "qqp": "QQP/QQP",
    "rte": "NLI/RTE",
    "sst2": "SC/SST-2",
    "wic": "WiC/WiC",
    "yelp": "SC/yelp",
}
HELD_OUT = {"imdb": 500, "multirc": 500, "yelp": 1000}  # rows of the training file
DBPEDIA_HELD_OUT = 2000  # rows of the test file
MAX_TRAIN, MAX_TEST = 5000, 1000

Rows = list[dict[str, Any]]


def read_task(task: str, folder: Path) -> dict[str, Rows]:
    """Return the training and test rows of a task, as ``sentence`` and ``label``."""
    random = Random(0)

    def shuffled(rows: Rows) -> Rows:
        random.shuffle(rows)
        return rows

    def read(split: str) -> Rows:
        text = (folder / f"{split}.json").read_text(encoding="utf-8")
        return shuffled(json.loads(text))

    if task == "dbpedia":
        rows = read("test")
        train = shuffled(rows[:-DBPEDIA_HELD_OUT])
        test = shuffled(rows[-DBPEDIA_HELD_OUT:])
    elif size := HELD_OUT.get(task):
        rows = read("train")
        train, test = rows[size:], rows[:size]
    else:
        train, test = read("train"), read("test")
    return {"train": train[:MAX_TRAIN], "test": test[:MAX_TEST]}


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 2:
        sys.exit("usage: python scripts/cl_benchmark.py CLONE FOLDER")
    clone, output = map(Path, arguments)
    for task, place in TASKS.items():
        try:
            splits = read_task(task, clone / "CL_Benchmark" / place)
        except FileNotFoundError as error:
            sys.exit(f"{error.filename}: no such file; is {clone} a clone of O-LoRA?")
        (output / task).mkdir(parents=True, exist_ok=True)
        for split, rows in splits.items():
            lines = (
                json.dumps(
                    {"text": row["sentence"], "label": row["label"]}, ensure_ascii=False
                )
                for row in rows
            )
            file = output / task / f"{split}.jsonl"
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(
            f"{task}: {len(splits['train'])} training, {len(splits['test'])} test rows"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
