"""The table of docs/several_gpus.md has the numbers that the command calculates."""

from pathlib import Path

import pytest

from tests.commands.doctor.table import KINDS, MODELS, row

PAGE = (Path(__file__).parents[3] / "docs" / "several_gpus.md").read_text("utf-8")


def test_a_line_is_what_is_counted():
    assert f"\n{row('1B', 'LoRA')}\n" in PAGE


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_every_line_is_what_is_counted(model, kind):
    assert f"\n{row(model, kind)}\n" in PAGE
