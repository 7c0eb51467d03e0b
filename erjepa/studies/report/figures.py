"""Figures of a report: their style and layout, for paper, small screens and dark pages."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.gridspec import GridSpec

COLUMN, PAGE = 3.3, 6.9  # inches
NUM_STYLES = 7
PERCENT = "accuracy (%)"
# Colors that contrast with both a white and a dark page.
_COLORS = ("#808080", "#c97a00", "#0f7fc0", "#009e73", "#cc6fa5", "#8a6fd1", "#d55e00")
_DASHES = ("", (4, 2), (6, 2, 1, 2), (1, 1.5), (8, 2), (3, 1, 1, 1), (1, 3))
# In SVGs this color is replaced by the color of the page's text.
_INK = "#1b1b1b"
_INK_ON_PAGES = (
    b":root{color:#1b1b1b}@media(prefers-color-scheme:dark){:root{color:#e6e6e6}}"
)
STYLE = Path(__file__).with_name("report.mplstyle")


@dataclass(frozen=True)
class Figure:
    """A figure of one or more panels; the labels of the first panel form its legend."""

    caption: str
    canvas: Canvas
    height: float = 2.4  # height of a row of panels, in inches
    columns: int = 1  # panels per row, if the page is wide enough
    name: str = ""  # distinguishes the figures of a section

    @property
    def width(self) -> float:
        """Width in inches on a wide page."""
        return COLUMN if self.columns == 1 else PAGE

    @cached_property
    def svgs(self) -> list[bytes]:
        """The figure as SVG; with several columns also with all panels in one column."""
        return [self.saved("svg", n) for n in sorted({1, self.columns}, reverse=True)]

    @property
    def addresses(self) -> list[str]:
        """``svgs`` as data URLs."""
        return [f"data:image/svg+xml;base64,{b64encode(x).decode()}" for x in self.svgs]

    def saved(self, form: str, columns: int | None = None) -> bytes:
        """Render the figure as ``png`` or ``svg``, with its panels in ``columns`` below a legend.

        The colors of an SVG adapt to dark mode.
        """
        columns = columns or self.columns
        panels = [axes for axes in self.canvas.axes if axes.get_subplotspec()]
        rows, width = ceil(len(panels) / columns), COLUMN if columns == 1 else PAGE
        self.canvas.set_size_inches(width, rows * self.height)
        grid = GridSpec(rows, columns, figure=self.canvas)
        for i, axes in enumerate(panels):
            axes.set_subplotspec(grid[i])
            _begin_at_zero(axes)
        legends = [axes.get_legend() for axes in panels]
        for old in filter(None, [*self.canvas.legends, *legends]):
            old.remove()
        shown = [axes.get_legend_handles_labels() for axes in panels]
        # Panels may lack methods: the legend is that of the fullest.
        handles, labels = max(shown, key=lambda legend: len(legend[1]))
        if labels:
            fitting = int(width * 72 / (4 * max(map(len, labels)) + 30))
            ncols = max(1, min(fitting, len(labels)))
            self.canvas.legend(handles, labels, loc="outside upper center", ncols=ncols)
        file = BytesIO()
        if form == "png":
            self.canvas.savefig(file, format=form)
            return file.getvalue()
        self.canvas.savefig(
            file, format=form, transparent=True, metadata={"Date": None}
        )
        svg = file.getvalue().replace(_INK.encode(), b"currentColor")
        return svg.replace(b"*{stroke-", _INK_ON_PAGES + b"*{stroke-", 1)


def _begin_at_zero(axes: Axes) -> None:
    """Cut the axes of percentages off at 0, which margins and error bars can cross."""
    if axes.get_xlabel().endswith("(%)") and axes.get_xlim()[0] < 0:
        axes.set_xlim(left=0)
    if axes.get_ylabel().endswith("(%)") and axes.get_ylim()[0] < 0:
        axes.set_ylim(bottom=0)


def canvas(panels: int = 1) -> tuple[Canvas, list[Axes]]:
    """Return an empty canvas and its panels, which are laid out when the figure is saved."""
    picture = Canvas(layout="constrained")
    return picture, list(picture.subplots(1, panels, squeeze=False).flat)


def draw_curves(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, methods: Sequence[str], **how: Any
) -> None:
    """Draw the means and sample standard deviations of column ``y`` over ``x``, for each method.

    Further arguments are passed to ``seaborn.lineplot``.
    """
    how |= {"hue": "method", "style": "method", "palette": _styles(methods, _COLORS)}
    how |= {"markers": _styles(methods, "os^DvPX"), "dashes": _styles(methods, _DASHES)}
    if len(rows):  # without, seaborn warns of the palette
        sns.lineplot(rows, x=x, y=y, ax=axes, errorbar="sd", markeredgewidth=0, **how)
    axes.set_ylabel(PERCENT)
    axes.grid()


def draw_bars(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, methods: Sequence[str]
) -> None:
    """Draw mean and sample standard deviation of ``accuracy`` as a bar per method, values as dots.

    One of ``x`` and ``y`` is ``accuracy``, the other the column of categories.
    """
    by = {"x": x, "y": y, "hue": "method", "ax": axes}
    palette, lines = _styles(methods, _COLORS), {"color": _INK, "linewidth": 0.8}
    sns.barplot(rows, **by, palette=palette, errorbar="sd", err_kws=lines)
    dots: dict[str, Any] = {"edgecolor": _INK, "linewidth": 0.5, "size": 2.5}
    dots |= {"dodge": "method" not in (x, y), "jitter": False, "legend": False}
    sns.stripplot(rows, **by, palette=dict.fromkeys(methods, "white"), **dots)
    labels = [PERCENT if name == "accuracy" else "" for name in (x, y)]
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.grid(axis="x" if x == "accuracy" else "y")


def _styles(methods: Sequence[str], styles: Sequence[Any]) -> dict[str, Any]:
    return {name: styles[i % NUM_STYLES] for i, name in enumerate(methods)}


def draw_grid(axes: Axes, values: pd.DataFrame, digits: int) -> None:
    """Draw a matrix as a heat map with its numbers; the cells of NaN are empty."""
    form = {"annot": True, "fmt": f".{digits}f", "annot_kws": {"size": 7}}
    look = {"cmap": "Blues", "cbar": False, "linewidths": 0.5}
    sns.heatmap(values.astype(float), ax=axes, **look, **form)
    axes.tick_params(length=0, rotation=0)
