"""Generated results shared by the tests of sections."""

import pytest

from erjepa.studies.report.results import Results
from tests.harness.fake_output import METHODS, read_rows, write_output
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
    return read_rows(output / "results.jsonl")


@pytest.fixture(scope="session")
def predictions(output, rows):
    """Method, seed and budget to predictions."""
    return {
        (row["method"], row["seed"], row["budget"]): read_rows(
            output / row["predictions"]
        )
        for row in rows
    }
