"""Figures: what all of them share, so that they read in grey and at column width."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO, StringIO

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
