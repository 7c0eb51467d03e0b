"""Figures: what all of them share, so that they read in grey and at column width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO, StringIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from erjepa.analysis.statistics import Spread, spread

COLUMN, PAGE = 3.3, 6.9  # inches
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # names of methods are no formulas
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "svg.hashsalt": "erjepa",  # the same results give the same file
}
_COLORS = ("#4d4d4d", "#e69f00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++")
MOST_LOOKS = len(_COLORS)


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        name (str): name of its files.
        caption (str): what it shows, over what.
        canvas (Canvas): the picture.
    """

    name: str
    caption: str
    canvas: Canvas

    @property
    def png(self) -> bytes:
        """The picture as PNG."""
        file = BytesIO()
        self.canvas.savefig(file, format="png")
        return file.getvalue()

    @cached_property
    def svg(self) -> str:
        """The picture as SVG."""
        file = StringIO()
        self.canvas.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()


@dataclass(frozen=True)
class Look:
    """How a method looks in every figure of an experiment."""

    color: str
    line: str | tuple
    marker: str
    hatch: str


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name, by its place, which no other name shares up to ``MOST_LOOKS``."""
    return {
        name: Look(
            *(
                choices[index % len(choices)]
                for choices in (_COLORS, _LINES, _MARKERS, _HATCHES)
            )
        )
        for index, name in enumerate(names)
    }


def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **sharing: bool
) -> tuple[Canvas, list[Axes]]:
    """An empty picture, in inches, and its axes row by row."""
    picture = Canvas(figsize=(width, height), layout="constrained")
    axes = picture.subplots(rows, columns, squeeze=False, **sharing)
    return picture, list(axes.flat)


def legend_above(picture: Canvas, axes: Axes, columns: int) -> None:
    """One legend for the whole picture, outside of its axes."""
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(
        handles, labels, loc="outside upper center", ncols=min(columns, len(labels))
    )


def draw_curve(
    axes: Axes,
    x: Sequence[float],
    values: Sequence[Spread],
    label: str,
    look: Look,
    error_bars: bool = False,
) -> None:
    """Means over ``x`` in percent, with one sample standard deviation as a band or as bars.

    What of a band is below 0% or above 100% is cut off.
    """
    mean = 100 * np.array([one.mean for one in values])
    sd = 100 * np.array([one.sd or 0.0 for one in values])
    style = {"color": look.color, "linestyle": look.line, "marker": look.marker}
    axes.plot(x, mean, label=label, **style)
    if error_bars:
        axes.errorbar(x, mean, sd, fmt="none", ecolor=look.color, capsize=2)
    else:
        low, high = np.clip(mean - sd, 0, 100), np.clip(mean + sd, 0, 100)
        axes.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)


def draw_bars(
    axes: Axes,
    groups: Mapping[str, Mapping[str, Sequence[float]]],
    looks: Mapping[str, Look],
) -> None:
    """Bars side by side in percent: means, one sample standard deviation, seeds as dots.

    Args:
        axes (Axes): where they go.
        groups (Mapping[str, Mapping[str, Sequence[float]]]): group to name to the values
            of its seeds, between 0 and 1.
        looks (Mapping[str, Look]): of every name, in order of bars.
    """
    width = 0.8 / len(looks)
    for index, (name, look) in enumerate(looks.items()):
        places = [place for place, bars in enumerate(groups.values()) if bars.get(name)]
        values = [list(groups.values())[place][name] for place in places]
        x = np.array(places) + (index - (len(looks) - 1) / 2) * width
        spreads = [spread(one) for one in values]
        axes.bar(
            x,
            [100 * one.mean for one in spreads],
            width,
            yerr=[100 * (one.sd or 0.0) for one in spreads],
            label=name,
            **_bar_style(look),
        )
        for center, seeds in zip(x, values, strict=True):
            draw_dots(axes, center + _places(seeds, width), _percent(seeds))
    axes.set_xticks(range(len(groups)), list(groups))
    axes.grid(axis="y")


def draw_rows(
    axes: Axes, rows: Mapping[str, Sequence[float]], looks: Mapping[str, Look]
) -> None:
    """Bars one below the other in percent, each with its name, mean and deviation."""
    ends = []
    for place, (name, values) in enumerate(rows.items()):
        one = spread(values)
        mean, sd = 100 * one.mean, 100 * (one.sd or 0.0)
        axes.barh(place, mean, 0.7, xerr=sd, **_bar_style(looks[name]))
        draw_dots(axes, _percent(values), place + _places(values, 0.7))
        text = f"{mean:.2f}" if one.sd is None else f"{mean:.2f} ± {sd:.2f}"
        ends.append(max(mean + sd, 100 * one.most))
        axes.annotate(
            text,
            (ends[-1], place),
            (4, 0),
            textcoords="offset points",
            va="center",
            size=7,
        )
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the first one on top
    axes.set_xlim(0, 1.5 * max(ends) or 1)  # with room for the texts
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 100])
    axes.grid(axis="x")


def draw_dots(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Single values over what sums them up."""
    axes.plot(x, y, "o", color="white", markeredgecolor="black", ms=2.5, mew=0.5)


def draw_grid(
    axes: Axes,
    values: Sequence[Sequence[float | None]],
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    best: tuple[int, int] | None = None,
) -> None:
    """A matrix as shades of grey with a text in each cell; None is left white.

    Args:
        axes (Axes): where it goes.
        values (Sequence[Sequence[float | None]]): what is shaded.
        texts (Sequence[Sequence[str]]): what is written.
        rows (Sequence[str]): names of rows.
        columns (Sequence[str]): names of columns.
        best (tuple[int, int] | None): row and column of the cell that stands out.
    """
    matrix = np.array(
        [[np.nan if one is None else one for one in row] for row in values], dtype=float
    )
    known = matrix[np.isfinite(matrix)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    # Up to a middle grey, which black text still stands out from.
    top = high + (high - low or 1.0)
    axes.imshow(matrix, cmap="Greys", vmin=low, vmax=top, aspect="auto")
    for i, j in np.ndindex(matrix.shape):
        weight = "bold" if (i, j) == best else "normal"
        axes.text(j, i, texts[i][j], ha="center", va="center", size=7, weight=weight)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _percent(values: Sequence[float]) -> list[float]:
    return [100 * value for value in values]


def _places(values: Sequence[float], width: float) -> np.ndarray:
    """Places of single seeds across a bar: side by side, in their order."""
    if len(values) == 1:
        return np.zeros(1)
    return np.linspace(-0.3, 0.3, len(values)) * width


def _bar_style(look: Look) -> dict[str, object]:
    return {
        "color": look.color,
        "alpha": 0.75,
        "hatch": look.hatch,
        "edgecolor": "black",
        "linewidth": 0.5,
        "error_kw": {"linewidth": 0.8, "capsize": 2},
    }
