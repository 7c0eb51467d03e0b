"""The manifest of a checkpoint: size and SHA-256 of each file, so that damage is found."""

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from erjepa.utils.files import sha256_of

MANIFEST = "manifest.json"
_THREADS = 4  # hashing leaves the interpreter to others


def write_manifest(folder: Path, leave_out: Iterable[str] = ()) -> None:
    """Write all files of ``folder`` through to the disk, and then what they are.

    Args:
        folder (Path): of a checkpoint, with all its files.
        leave_out (Iterable[str]): names of files that may change later.
    """
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in leave_out
    )
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda name: _written(folder / name), names))
    files = {
        name: {"bytes": size, "sha256": digest}
        for name, (size, digest) in zip(names, found, strict=True)
    }
    with (folder / MANIFEST).open("w") as file:
        file.write(_text(files))
        file.flush()
        os.fsync(file.fileno())


def damage(folder: Path, patterns: Iterable[str] | None = None) -> str | None:
    """What is wrong with the files of a checkpoint.

    Args:
        folder (Path): of the checkpoint.
        patterns (Iterable[str] | None): names of files to read, such as
            ``model*.safetensors``; ``None``: all that were written.

    Returns:
        str | None: the first file that is not the one written, and why; ``None`` if all are.
    """
    path = folder / MANIFEST
    try:
        text = path.read_text()
        files = json.loads(text)["files"]
        if text != _text(files):
            return f"{path} is damaged"
    except FileNotFoundError:
        return f"{path} is missing, so the files beside it cannot be checked"
    except (ValueError, TypeError, KeyError):
        return f"{path} is damaged"
    names = list(files)
    if patterns is not None:
        present = {path.name for path in folder.iterdir()}
        names = [
            name
            for name in sorted(present.union(files))
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        ]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(lambda name: _difference(folder, name, files), names)
        differences = dict(zip(names, found, strict=True))
    return next((f"{folder / n} {d}" for n, d in differences.items() if d), None)


def _text(files: dict[str, dict[str, Any]]) -> str:
    """The manifest, with a digest of its own, which a change anywhere in it belies."""
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return json.dumps({"files": files, "sha256": digest}, indent=2) + "\n"


def _difference(
    folder: Path, name: str, files: dict[str, dict[str, Any]]
) -> str | None:
    if name not in files:
        return f"is not listed in {MANIFEST}"
    size, digest = files[name]["bytes"], files[name]["sha256"]
    try:
        if (actual := (folder / name).stat().st_size) != size:
            return f"has {actual} bytes, not the {size} that were written"
        if sha256_of(folder / name) != digest:
            return "is damaged: its SHA-256 is not that of what was written"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error}"
    return None


def _written(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path.stat().st_size, sha256_of(path)
