"""The table of docs/several_gpus.md has the numbers that the command calculates."""

from pathlib import Path

import pytest

from tests.commands.doctor.table import KINDS, MODELS, cell, row

PAGE = (Path(__file__).parents[3] / "docs" / "several_gpus.md").read_text("utf-8")


@pytest.mark.slow
def test_a_cell_is_what_is_counted():
    (line,) = (x for x in PAGE.splitlines() if x.startswith("| 1B | LoRA |"))
    assert line.split(" | ")[2] == cell("1B", "LoRA", 1, 24)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_every_line_is_what_is_counted(model, kind):
    assert f"\n{row(model, kind)}\n" in PAGE
