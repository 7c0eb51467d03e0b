"""Folders that a program creates in an output folder and may later remove.

Each is marked by a file ``.made_by_erjepa``. Nothing outside of a marked folder is removed, and
nothing is written or removed through a symbolic link below the output folder.
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
    _require_no_link(root, folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        _require_mark(root, folder)
    else:
        (folder / MARK).touch()


def remove(root: Path, path: Path) -> None:
    """Remove a marked folder, or a file or folder in one.

    Raises:
        ValueError: if there is no mark, or the path contains a symbolic link.
    """
    _require_no_link(root, path)
    if path.is_dir():
        _require_mark(root, path)
        # The mark goes last, so that an interrupted removal can be repeated.
        for inside in sorted(path.iterdir(), key=lambda inside: inside.name == MARK):
            if inside.is_dir() and not inside.is_symlink():
                shutil.rmtree(inside)
            else:
                inside.unlink()
        path.rmdir()
    elif path.exists():
        _require_mark(root, path)
        path.unlink()


def _require_no_link(root: Path, path: Path) -> None:
    inside = path.relative_to(root)
    if path.resolve() != root.resolve() / inside:
        raise ValueError(
            f"{path}: a symbolic link leads out of {root}; replace it by a folder, or set "
            "output_dir to where the files should be"
        )


def _require_mark(root: Path, path: Path) -> None:
    within = [path, *path.parents]
    if not any((folder / MARK).is_file() for folder in within[: within.index(root)]):
        raise ValueError(
            f"{path} was not made by this program (it has no {MARK}); move it away, or, if "
            f"everything in it may be deleted: touch {shlex.quote(str(path / MARK))}"
        )
