"""Generated results shared by the tests of sections."""

import json

import pytest

from erjepa.studies.report.results import Results
from tests.harness.fake_output import METHODS, write_output
from tests.harness.report_parts import BUDGETS, SEEDS


@pytest.fixture(scope="session")
def output(tmp_path_factory):
    """Three methods of the paper, one more, the control; a method matched in tokens."""
    return write_output(
        tmp_path_factory.mktemp("experiment") / "out",
        methods={
            **METHODS,
            "LLM-JEPA token-matched": {
                "replay.weight": 0,
                "stop.tokens_of": "ER-JEPA content",
            },
        },
        seeds=SEEDS,
        budgets=BUDGETS,
        examples=60,
    )


@pytest.fixture(scope="session")
def results(output):
    return Results(output)


@pytest.fixture(scope="session")
def rows(output):
    lines = (output / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def predictions(output, rows):
    """Method, seed and budget to predictions."""
    return {
        (row["method"], row["seed"], row["budget"]): [
            json.loads(line)
            for line in (output / row["predictions"]).read_text().splitlines()
        ]
        for row in rows
    }
