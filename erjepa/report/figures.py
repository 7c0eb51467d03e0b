"""Figures: what all of them share, so that they read on paper, on a phone and in the dark."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import ceil
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.gridspec import GridSpec

COLUMN, PAGE = 3.3, 6.9  # inches
MOST_LOOKS = 7
# Of a lightness between that of a white and of a dark page.
_COLORS = ("#808080", "#c97a00", "#0f7fc0", "#009e73", "#cc6fa5", "#8a6fd1", "#d55e00")
# What has this color takes that of the page's text, where a picture can.
_INK = "#1b1b1b"
_INK_ON_PAGES = (
    ":root{color:#1b1b1b}@media(prefers-color-scheme:dark){:root{color:#e6e6e6}}"
)
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color")
STYLE = {
    "font.size": 8,
    **dict.fromkeys(("axes.titlesize", "axes.labelsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 7),
    **dict.fromkeys((*_INKED, "ytick.color"), _INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "legend.handlelength": 2.6,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "grid.color": "#808080",
    "grid.linewidth": 0.4,
    "grid.alpha": 0.4,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "text.parse_math": False,  # names of methods are no formulas
    "savefig.dpi": 300,
    "svg.hashsalt": "erjepa",  # the same results give the same file
}


@dataclass(frozen=True)
class Figure:
    """A picture.

    Args:
        caption (str): what it shows, over what.
        canvas (Canvas): it, with the labels of its first panel as the legend.
        height (float): of a row of panels, in inches.
        columns (int): panels side by side, where there is room.
        name (str): what sets it apart within its section.
    """

    caption: str
    canvas: Canvas
    height: float = 2.4
    columns: int = 1
    name: str = ""

    @property
    def width(self) -> float:
        """In inches, where there is room."""
        return COLUMN if self.columns == 1 else PAGE

    @property
    def png(self) -> bytes:
        """The picture as PNG."""
        return self._saved(self.columns, format="png")

    @property
    def svg(self) -> str:
        """The picture as SVG, which follows a dark page."""
        return self._svg(self.columns)

    @property
    def addresses(self) -> list[str]:
        """The picture as SVG within an address, and if that is another, panels in a column."""
        svgs = [self._svg(columns) for columns in sorted({1, self.columns})][::-1]
        start = "data:image/svg+xml;base64,"
        return [start + b64encode(svg.encode()).decode() for svg in svgs]

    def _svg(self, columns: int) -> str:
        file = self._saved(
            columns, format="svg", transparent=True, metadata={"Date": None}
        )
        svg = file.decode().replace(_INK, "currentColor")
        return svg.replace("*{stroke-", f"{_INK_ON_PAGES}*{{stroke-", 1)

    def _saved(self, columns: int, **how: Any) -> bytes:
        """The picture with its panels laid out in columns, below one legend for all."""
        panels = [axes for axes in self.canvas.axes if axes.get_subplotspec()]
        rows, width = ceil(len(panels) / columns), COLUMN if columns == 1 else PAGE
        self.canvas.set_size_inches(width, rows * self.height)
        grid = GridSpec(rows, columns, figure=self.canvas)
        for axes, place in zip(panels, grid, strict=False):
            axes.set_subplotspec(place)
        for old in self.canvas.legends:
            old.remove()
        handles, labels = panels[0].get_legend_handles_labels()
        if labels:
            fitting = int(width * 72 / (4 * max(map(len, labels)) + 30))
            ncols = max(1, min(fitting, len(labels)))
            self.canvas.legend(handles, labels, loc="outside upper center", ncols=ncols)
        file = BytesIO()
        self.canvas.savefig(file, **how)
        return file.getvalue()


def canvas(panels: int = 1) -> tuple[Canvas, list[Axes]]:
    """An empty picture and its panels, which are laid out when it is saved."""
    picture = Canvas(layout="constrained")
    axes = picture.subplots(1, panels, squeeze=False)
    return picture, list(axes.flat)


def looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Color, marker and dashes of each name, by its place, as seaborn takes them."""
    places = {name: i % MOST_LOOKS for i, name in enumerate(names)}
    choices = {
        "palette": _COLORS,
        "markers": ("o", "s", "^", "D", "v", "P", "X"),
        "dashes": ("", (4, 2), (6, 2, 1, 2), (1, 1.5), (8, 2), (3, 1, 1, 1), (1, 3)),
    }
    return {
        key: {name: values[place] for name, place in places.items()}
        for key, values in choices.items()
    }


def draw_curves(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, look: dict[str, Any], **how: Any
) -> None:
    """Means of column ``y``, in percent, over ``x``, a curve for each ``method``.

    With one sample standard deviation; ``how`` is seaborn's.
    """
    by = {"hue": "method", "style": "method", **look}
    how |= {"errorbar": "sd", "markeredgewidth": 0}
    sns.lineplot(rows, x=x, y=y, ax=axes, **by, **how)
    axes.get_legend().remove()
    axes.grid()


def draw_bars(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, look: dict[str, Any]
) -> None:
    """Means of one column over the other, a bar for each ``method``.

    With one sample standard deviation, and single values as dots.
    """
    by = {"x": x, "y": y, "hue": "method", "ax": axes}
    lines = {"color": _INK, "linewidth": 0.8}
    sns.barplot(rows, **by, palette=look["palette"], errorbar="sd", err_kws=lines)
    dots = {"palette": dict.fromkeys(look["palette"], "white"), "edgecolor": _INK}
    dots |= {"linewidth": 0.5, "size": 2.5, "dodge": "method" not in (x, y)}
    sns.stripplot(rows, **by, **dots, jitter=False, legend=False)
    if axes.get_legend():
        axes.get_legend().remove()


def draw_grid(axes: Axes, values: pd.DataFrame, digits: int) -> None:
    """A matrix as shades, with its numbers; where there is none, the cell is empty."""
    values = values.astype(float)
    form = {"annot": True, "fmt": f".{digits}f", "annot_kws": {"size": 7}}
    sns.heatmap(values, ax=axes, cmap="Blues", cbar=False, linewidths=0.5, **form)
    axes.tick_params(length=0, rotation=0)
