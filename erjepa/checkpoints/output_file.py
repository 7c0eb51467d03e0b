"""The files that commands write for their users, outside of runs."""

from pathlib import Path

from erjepa.checkpoints.checkpoint import PROGRESS
from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS
from erjepa.checkpoints.memory_file import ABOUT


def require_new(option: str, path: Path) -> None:
    """Check that ``path`` is a new file in a folder that is neither a checkpoint nor a memory.

    Args:
        option: what the user gave it as, for messages.

    Raises:
        FileExistsError, FileNotFoundError, ValueError: if not.
    """
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{option} {path}: {path.parent} is not a folder")
    file = path.resolve()
    marks = [folder / mark for folder in file.parents for mark in (PROGRESS, ABOUT)]
    if file.name == EXAMPLE_ERRORS or any(mark.exists() for mark in marks):
        raise ValueError(f"{option} {path} is a run's own; choose a file elsewhere")
    if path.exists():
        raise FileExistsError(f"{option} {path} exists; choose another name")
