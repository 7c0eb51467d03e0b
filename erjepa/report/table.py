"""Tables: cells with their units, before any format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from erjepa.analysis.examples import Marked
from erjepa.analysis.statistics import Spread

# A spread is shown as mean and standard deviation; None is what there is no value of.
Cell = str | int | float | Spread | Marked | None
ABSENT = "—"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name (str): its heading, with the unit.
        digits (int): digits after the point of numbers.
        scale (float): what numbers are multiplied by: 100 for percentages.
        best (bool): whether the greatest number stands out.
    """

    name: str
    digits: int = 2
    scale: float = 1.0
    best: bool = False


@dataclass(frozen=True)
class Style:
    """How a format writes cells.

    Args:
        escape (Callable[[str], str]): a text, so that nothing in it is read as markup.
        bold (str): format of what stands out.
        plus_minus (str): what stands between a mean and its standard deviation.
        marks (Mapping[str, str]): kind of a marked part to its format.
        code (str): format of a whole text with marked parts.
    """

    escape: Callable[[str], str]
    bold: str
    plus_minus: str
    marks: Mapping[str, str]
    code: str = "{}"


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        name (str): name of its files.
        caption (str): what it shows, over what.
        columns (Sequence[Column]): its columns.
        rows (Sequence[Sequence[Cell]]): a cell for each column.

    Raises:
        ValueError: if a row has more cells or fewer.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"table {self.name}: a row has {len(row)} cells, there are "
                    f"{len(self.columns)} columns"
                )

    def column(self, index: int) -> list[Cell]:
        """The cells of a column."""
        return [row[index] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers."""
        return [
            any(number(cell) is not None for cell in self.column(index))
            for index in range(len(self.columns))
        ]

    def write(self, style: Style) -> list[list[str]]:
        """All cells as texts.

        Args:
            style (Style): of the format.

        Returns:
            list[list[str]]: rows of cells.
        """
        best = [self._best(index) for index in range(len(self.columns))]
        return [
            [
                _write(cell, column, style, cell is not None and number(cell) == top)
                for cell, column, top in zip(row, self.columns, best, strict=True)
            ]
            for row in self.rows
        ]

    def _best(self, index: int) -> int | float | None:
        numbers = [number(cell) for cell in self.column(index)]
        found = [one for one in numbers if one is not None]
        return max(found, default=None) if self.columns[index].best else None


def number(cell: Cell) -> int | float | None:
    """The number in a cell, a mean if it is a spread; None if it holds none."""
    if isinstance(cell, Spread):
        return cell.mean
    return cell if isinstance(cell, int | float) else None


def _write(cell: Cell, column: Column, style: Style, is_best: bool) -> str:
    if cell is None:
        return style.escape(ABSENT)
    if isinstance(cell, str):
        return style.escape(cell)
    if isinstance(cell, list):
        parts = (style.marks[kind].format(style.escape(part)) for part, kind in cell)
        return style.code.format("".join(parts))
    digits = 0 if isinstance(cell, int) else column.digits
    value = number(cell) * column.scale
    text = f"{value:.{digits}f}"
    if isinstance(cell, float) and value and not float(text):
        text = f"{value:.1g}"  # a small p-value is no zero
    if isinstance(cell, Spread) and cell.sd is not None:
        text += f"{style.plus_minus}{cell.sd * column.scale:.{digits}f}"
    return style.bold.format(text) if is_best else text
