"""The manifest of a checkpoint: size and SHA-256 of each file, so that damage is found."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path

from erjepa.utils.checked import checked
from erjepa.utils.files import open_regular, sha256_of

MANIFEST = "manifest.json"
# In a checkpoint: files that `erjepa memory forget` is moving to their places.
FORGOTTEN = ".forgotten"
_THREADS = 4  # hashing leaves the interpreter to others


@dataclass(frozen=True)
class Listed:
    """A file as it was written: its size and its SHA-256."""

    bytes: int
    sha256: str

    def difference(self, file: BufferedReader) -> str | None:
        """How an open file differs from it, ``None`` if it does not."""
        if (size := os.fstat(file.fileno()).st_size) != self.bytes:
            return f"has {size} bytes, not the {self.bytes} that were written"
        if sha256_of(file) != self.sha256:
            return "is damaged: its SHA-256 is not that of what was written"
        return None


def write_manifest(folder: Path, leave_out: Iterable[str] = ()) -> None:
    """Write all files of ``folder`` through to the disk, and then what they are.

    Args:
        leave_out: names of files that may change later.
    """
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in leave_out
    )
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda name: _written(folder / name), names))
    files = dict(zip(names, found, strict=True))
    with (folder / MANIFEST).open("w") as file:
        file.write(_text(files))
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> dict[str, Listed]:
    """The files of a checkpoint as they were written, by their paths in it.

    Raises:
        ValueError: if its manifest is missing or damaged, or if deleting pairs was interrupted.
    """
    path = folder / MANIFEST
    if (folder / FORGOTTEN).is_dir():
        raise ValueError(
            f"{folder}: deleting pairs of its memory was interrupted; finish it with the same "
            f"command: erjepa memory forget {folder.parent} ... (the last line of "
            "forgotten.jsonl there names the pairs)"
        )
    try:
        with open_regular(path) as file:
            text = file.read().decode()
        files = checked(dict[str, Listed], json.loads(text)["files"], str(path))
        if text == _text(files):
            return files
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing, so the files beside it cannot be checked"
        ) from None
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise ValueError(f"{path} is damaged")


def relisted(folder: Path, new: Mapping[str, Path]) -> str:
    """The manifest of a checkpoint whose ``new`` files are going to be replaced.

    Args:
        new: the files that will be in place, by their paths in it; they are written through to
            the disk.

    Raises:
        ValueError: if its manifest is missing or damaged.
    """
    return _text(read_manifest(folder) | {k: _written(path) for k, path in new.items()})


def damage(folder: Path, patterns: Iterable[str] | None = None) -> str | None:
    """The first file of a checkpoint that is not the one written, and why; ``None`` if all are.

    Args:
        patterns: names of files to read, such as ``model*.safetensors``; ``None``: all.
    """
    try:
        files = read_manifest(folder)
    except ValueError as error:
        return str(error)
    names = list(files)
    if patterns is not None:
        present = {path.name for path in folder.iterdir()}
        names = [
            name
            for name in sorted(present.union(files))
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        ]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(
            lambda name: _difference(folder / name, files.get(name)), names
        )
        differences = dict(zip(names, found, strict=True))
    return next((f"{folder / n} {d}" for n, d in differences.items() if d), None)


def _text(files: Mapping[str, Listed]) -> str:
    """The manifest, with its own digest, so that a change anywhere in it is found."""
    plain = {name: asdict(listed) for name, listed in files.items()}
    digest = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
    return json.dumps({"files": plain, "sha256": digest}, indent=2) + "\n"


def _difference(path: Path, listed: Listed | None) -> str | None:
    if listed is None:
        return f"is not listed in {MANIFEST}"
    try:
        with open_regular(path) as file:
            return listed.difference(file)
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError) as error:
        return f"cannot be read: {error}"


def _written(path: Path) -> Listed:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return Listed(os.fstat(file.fileno()).st_size, sha256_of(file))
