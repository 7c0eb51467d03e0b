"""Helpers that read the tables and figures of report sections."""

import statistics
from typing import NamedTuple

import pytest

import erjepa.studies.report.build  # noqa: F401  it enters the sections
from erjepa.studies.report.figures import Figure
from erjepa.studies.report.sections import SECTIONS
from erjepa.studies.report.table import SD, Table
from tests.harness.fake_output import MAIN_METHODS

SEEDS = (82, 23, 37)
BUDGETS = [1e15, 2e15, 4e15]
MAIN = tuple(MAIN_METHODS)


def accuracies(rows, method, budget):
    found = {
        row["seed"]: row
        for row in rows
        if (row["method"], row["budget"]) == (method, budget)
    }
    return [found[seed]["accuracy"] for seed in SEEDS]


class Cell(NamedTuple):
    mean: float
    sd: float


class View(NamedTuple):
    """A table with each value and its standard deviation in one cell."""

    columns: list[str]
    rows: list[list]
    caption: str

    def column(self, name):
        index = name if isinstance(name, int) else self.columns.index(name)
        return [row[index] for row in self.rows]


def view(table):
    columns = []
    for name in table.columns:
        values, sds = table.frame[name].tolist(), table.frame.get(name + SD)
        columns.append(values if sds is None else list(map(Cell, values, sds)))
    rows = list(map(list, zip(*columns, strict=True)))
    return View(table.columns, rows, table.caption)


def make(name, *arguments, **others):
    return SECTIONS[name].parts(*arguments, **others)


def build(name, *arguments, **others):
    """Return the first figure of a section, if any, and views of its tables."""
    made = make(name, *arguments, **others)
    return (
        next((part for part in made if isinstance(part, Figure)), None),
        [view(part) for part in made if isinstance(part, Table)],
    )


def curves(axes):
    """Return the plotted curves by label, without the samples of the legend."""
    samples = {
        line.get_color(): line for line in axes.lines if not len(line.get_xdata())
    }
    drawn = [
        line
        for line in axes.lines
        if len(line.get_xdata()) and line.get_linestyle() != "None"
    ]
    return {samples[line.get_color()].get_label(): line for line in drawn}


def bars(axes):
    """Return the plotted bars by method."""
    return [patch for patch in axes.patches if patch.get_label() == "_nolegend_"]


def assert_spread(cell, values, scale=100):
    assert cell.mean == pytest.approx(scale * statistics.mean(values))
    assert cell.sd == pytest.approx(scale * statistics.stdev(values))
