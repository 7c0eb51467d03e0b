"""The log of each example's errors over training, which a resumed run continues.

It has one row per use of an example in training:

- step: optimizer step of the run, 1-based
- example: its id in the episodic memory, see :mod:`erjepa.checkpoints.memory_file`
- replayed: 1 if it was replayed from the memory, 0 if it was a new pair
- lm_loss: cross-entropy per label, in nats, before the update
- jepa_loss: :math:`d(p, z^a)` before the update
"""

import io
import re
from pathlib import Path
from typing import TextIO

import pandas as pd

from erjepa.utils.escape import one_line
from erjepa.utils.files import write_whole

EXAMPLE_ERRORS = "example_errors.csv"  # in the output folder
_COLUMNS = {
    **dict.fromkeys(("step", "example", "replayed"), "int64"),
    **dict.fromkeys(("lm_loss", "jepa_loss"), "float64"),
}
_LOSS = r"(-?\d+(\.\d+)?(e[+-]\d+)?|-?inf|nan)"
_ROW = re.compile(rf"\d{{1,18}},-?\d{{1,18}},[01],{_LOSS},{_LOSS}", re.ASCII)
_FORMAT = {"index": False, "float_format": "%.5g", "na_rep": "nan"}


class ExampleErrors:
    """Writer of a run's ``example_errors.csv``. It writes once it was opened, on one rank only."""

    def __init__(self, output_dir: Path) -> None:
        self._path = output_dir / EXAMPLE_ERRORS
        self._file: TextIO | None = None

    def continue_after(self, step: int) -> None:
        """Open the file, without visits after ``step``: the resumed run repeats them."""
        if not step:
            self._path.unlink(missing_ok=True)
        visits = read_visits(self._path)
        write_visits(self._path, visits[visits.step <= step])
        self._file = self._path.open("a")

    def log(self, visits: pd.DataFrame) -> None:
        if self._file is not None:
            visits.to_csv(self._file, header=False, **_FORMAT)

    def flush(self) -> None:
        """Flush the file, before a checkpoint is saved."""
        if self._file is not None:
            self._file.flush()


def write_visits(path: Path, visits: pd.DataFrame) -> None:
    """Atomically write a file of :class:`ExampleErrors`."""
    write_whole(path, visits.to_csv(**_FORMAT))


def read_visits(path: Path) -> pd.DataFrame:
    """Read a file of :class:`ExampleErrors`; without the file, there are no visits.

    An incomplete last line, which a killed run may leave, is skipped.

    Raises:
        ValueError: naming file and line, if a line is not a visit.
    """
    text = path.read_text(errors="replace") if path.is_file() else ""
    rows = text.split("\n")[1:-1]
    for number, row in enumerate(rows, start=2):
        if not _ROW.fullmatch(row):
            raise ValueError(
                f"{path}:{number}: expected {', '.join(_COLUMNS)}, got "
                f"{one_line(row, 80)!r}"
            )
    file = io.StringIO("\n".join([",".join(_COLUMNS), *rows]))
    return pd.read_csv(file, dtype=_COLUMNS)
