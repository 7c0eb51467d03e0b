"""Folders that a program creates in an output folder and may later empty.

Each is marked by a file ``.made_by_erjepa``. A folder without the mark, or behind a symbolic link
below the output folder, is refused.
"""

import shlex
import shutil
from pathlib import Path

MARK = ".made_by_erjepa"


def make_folder(root: Path, folder: Path) -> None:
    """Create a folder below ``root`` and mark it, unless it is marked already.

    Raises:
        ValueError: if the folder has files but no mark, or its path contains a symbolic link.
    """
    if folder.resolve() != root.resolve() / folder.relative_to(root):
        raise ValueError(
            f"{folder}: a symbolic link leads out of {root}; replace it by a folder, or set "
            "output_dir to where the files should be"
        )
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    if not any(folder.iterdir()):
        mark.touch()
    elif not mark.is_file():
        raise ValueError(
            f"{folder} was not made by this program (it has no {MARK}); move it away, or, if "
            f"everything in it may be deleted: touch {shlex.quote(str(mark))}"
        )


def empty(folder: Path) -> None:
    """Remove all that a folder of :func:`make_folder` holds, except for its mark."""
    for inside in folder.iterdir():
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside)
        elif inside.name != MARK:
            inside.unlink()
