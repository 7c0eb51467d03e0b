"""Figures: what all of them share, so that they read in grey and at column width."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO, StringIO

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

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
MOST_LOOKS = 7
_COLORS = ("#4d4d4d", "#e69f00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++")


@dataclass(frozen=True)
class Figure:
    """A picture, what it shows over what, and what sets it apart within its section."""

    caption: str
    canvas: Canvas
    name: str = ""

    @property
    def width(self) -> float:
        """In inches."""
        return self.canvas.get_figwidth()

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

    @property
    def base64(self) -> str:
        """The picture as SVG within an address."""
        return b64encode(self.svg.encode()).decode()


@dataclass(frozen=True)
class Look:
    """How a method looks: as a line with markers, and as a bar."""

    line: Mapping[str, object]
    bar: Mapping[str, object]


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name, by its place, which no other of ``MOST_LOOKS`` shares."""
    found = {}
    for index, name in enumerate(names):
        color, line, marker, hatch = (
            choices[index % len(choices)]
            for choices in (_COLORS, _LINES, _MARKERS, _HATCHES)
        )
        bar = {"color": color, "hatch": hatch, "alpha": 0.75, "edgecolor": "black"}
        bar |= {"linewidth": 0.5, "error_kw": {"linewidth": 0.8, "capsize": 2}}
        found[name] = Look({"color": color, "linestyle": line, "marker": marker}, bar)
    return found


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


def draw_curves(
    axes: Axes,
    rows: pd.DataFrame,
    x: str,
    y: str,
    styles: Mapping[str, Look],
    error_bars: bool = False,
) -> None:
    """Means of column ``y``, in percent, over ``x``, a curve for each ``method``.

    One sample standard deviation is a band, cut off below 0% and above 100%, or bars.
    """
    for method, own in rows.groupby("method", sort=False):
        at = own.groupby(x)[y].agg(["mean", "std"]).dropna(subset="mean").fillna(0.0)
        low, high = at["mean"] - at["std"], at["mean"] + at["std"]
        color = styles[method].line["color"]
        axes.plot(at.index, at["mean"], label=method, **styles[method].line)
        if error_bars:
            axes.errorbar(
                *(at.index, at["mean"], at["std"]), fmt="none", ecolor=color, capsize=2
            )
        else:
            band = low.clip(0, 100), high.clip(0, 100)
            axes.fill_between(at.index, *band, color=color, alpha=0.15, linewidth=0)
    axes.grid()


def draw_bars(
    axes: Axes, rows: pd.DataFrame, by: str, y: str, styles: Mapping[str, Look]
) -> None:
    """Means of column ``y``, in percent, a group of bars for each value of ``by``.

    With one sample standard deviation, and single values as dots; bars in order of styles.
    """
    groups = list(rows[by].unique())
    width = 0.8 / len(styles)
    for index, (method, style) in enumerate(styles.items()):
        own = rows[rows.method == method].groupby(by, sort=False)[y]
        x = (
            np.array(list(map(groups.index, own.groups)))
            + (index - (len(styles) - 1) / 2) * width
        )
        axes.bar(
            x, own.mean(), width, yerr=own.std().fillna(0), label=method, **style.bar
        )
        for center, (_, values) in zip(x, own, strict=True):
            _draw_dots(axes, center + _places(values, width), values)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(axis="y")


def draw_rows(
    axes: Axes, rows: pd.DataFrame, y: str, styles: Mapping[str, Look]
) -> None:
    """Bars one below the other, each with its name, mean and deviation, and dots."""
    ends, names = [], []
    for place, (method, values) in enumerate(rows.groupby("method", sort=False)[y]):
        mean, sd = values.mean(), values.std()
        has_sd = len(values) > 1
        axes.barh(place, mean, 0.7, xerr=sd if has_sd else 0.0, **styles[method].bar)
        _draw_dots(axes, values, place + _places(values, 0.7))
        text = f"{mean:.2f} ± {sd:.2f}" if has_sd else f"{mean:.2f}"
        ends.append(max(mean + sd if has_sd else mean, values.max()))
        names.append(method)
        offset = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(text, (ends[-1], place), va="center", size=7, **offset)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first one on top
    axes.set_xlim(0, 1.5 * max(ends) or 1)  # with room for the texts
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 100])
    axes.grid(axis="x")


def draw_grid(
    axes: Axes, values: pd.DataFrame, texts: pd.DataFrame, bold: object = None
) -> None:
    """A matrix as shades of grey, texts in its cells; cells of ``bold`` stand out."""
    matrix = values.to_numpy(float)
    known = matrix[np.isfinite(matrix)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    # Up to a middle grey, which black text still stands out from.
    top = high + (high - low or 1.0)
    axes.imshow(matrix, cmap="Greys", vmin=low, vmax=top, aspect="auto")
    for i, j in np.ndindex(matrix.shape):
        weight = "bold" if matrix[i, j] == bold else "normal"
        axes.text(
            j, i, texts.iloc[i, j], ha="center", va="center", size=7, weight=weight
        )
    axes.set_xticks(range(values.shape[1]), list(map(str, values.columns)))
    axes.set_yticks(range(values.shape[0]), list(map(str, values.index)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_dots(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Single values over what sums them up."""
    axes.plot(x, y, "o", color="white", markeredgecolor="black", ms=2.5, mew=0.5)


def _places(values: Sequence[float], width: float) -> np.ndarray:
    """Places of single seeds across a bar: side by side, in their order."""
    return (
        np.linspace(-0.3, 0.3, len(values)) * width if len(values) > 1 else np.zeros(1)
    )
