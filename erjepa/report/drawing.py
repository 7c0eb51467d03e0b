"""Curves, bars and grids: values between 0 and 1 in, percent drawn."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from erjepa.analysis.statistics import Spread, spread
from erjepa.report.figures import Look


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
