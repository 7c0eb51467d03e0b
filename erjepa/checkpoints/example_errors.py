"""The log of each example's errors over training, which a resumed run continues."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import torch.distributed as dist

from erjepa.utils.escape import one_line
from erjepa.utils.files import write_whole

EXAMPLE_ERRORS = "example_errors.csv"  # in the output folder
_COLUMNS = ("step", "example", "replayed", "lm_loss", "jepa_loss")


class Visit(NamedTuple):
    """One use of an example in training.

    Args:
        step: optimizer step of the run, 1-based.
        example: its id in the episodic memory, see :mod:`erjepa.checkpoints.memory_file`.
        replayed: whether it was replayed from the memory rather than a new pair.
        lm_loss: cross-entropy per label, in nats, before the update.
        jepa_loss: :math:`d(p, z^a)` before the update.
    """

    step: int
    example: int
    replayed: bool
    lm_loss: float
    jepa_loss: float


class ExampleErrors:
    """Writer of a run's ``example_errors.csv``; only rank 0 writes."""

    def __init__(self, output_dir: Path) -> None:
        self._path = output_dir / EXAMPLE_ERRORS
        self._file: TextIO | None = None

    def continue_after(self, step: int) -> None:
        """Open the file, without visits after ``step``: the resumed run repeats them."""
        if dist.get_rank() != 0:
            return
        if not step:
            self._path.unlink(missing_ok=True)
        keep_visits(self._path, lambda visit: visit.step <= step)
        self._file = self._path.open("a")

    def log(self, visits: Sequence[Visit]) -> None:
        """Append the visits of a step."""
        if self._file is not None:
            self._file.writelines(map(_line, visits))

    def flush(self) -> None:
        """Flush the file, before a checkpoint is saved."""
        if self._file is not None:
            self._file.flush()


def keep_visits(path: Path, is_kept: Callable[[Visit], bool]) -> None:
    """Atomically rewrite a file of :class:`ExampleErrors` with only the visits to keep."""
    header = ",".join(_COLUMNS) + "\n"
    write_whole(path, header + "".join(map(_line, filter(is_kept, read_visits(path)))))


def _line(visit: Visit) -> str:
    step, example, replayed, lm_loss, jepa_loss = visit
    return f"{step},{example},{int(replayed)},{lm_loss:.5g},{jepa_loss:.5g}\n"


def read_visits(path: Path) -> Iterator[Visit]:
    """Yield the visits in a file of :class:`ExampleErrors`, in order; none if it does not exist.

    An incomplete last line, which a killed run may leave, is skipped.

    Raises:
        ValueError: naming file and line, if a line is not a visit.
    """
    if not path.is_file():
        return
    with path.open(errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n") or line.startswith(_COLUMNS[0]):
                continue
            try:
                step, example, replayed, lm_loss, jepa_loss = line.split(",")
                visit = Visit(
                    int(step),
                    int(example),
                    replayed == "1",
                    float(lm_loss),
                    float(jepa_loss),
                )
            except ValueError:
                raise ValueError(
                    f"{path}:{number}: expected {', '.join(_COLUMNS)}, got "
                    f"{one_line(line, 80)!r}"
                ) from None
            yield visit
