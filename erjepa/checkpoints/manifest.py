"""The manifest of a checkpoint: size and SHA-256 of each file, to detect damage."""

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
from erjepa.utils.files import CARD, open_regular, sha256_of

MANIFEST = "manifest.json"
# In a checkpoint: folder of new files that `erjepa memory forget` has yet to move into place.
PENDING = ".forgotten"
DELETIONS = "forgotten.jsonl"  # in a run's folder: the pairs that were deleted
_THREADS = 4  # hashing releases the GIL


@dataclass(frozen=True)
class Listed:
    """Size and SHA-256 of a file as it was written."""

    bytes: int
    sha256: str

    def difference(self, file: BufferedReader) -> str | None:
        """Return how an open file differs from the one written; ``None`` if it does not."""
        if (size := os.fstat(file.fileno()).st_size) != self.bytes:
            return f"has {size} bytes, not the {self.bytes} that were written"
        if sha256_of(file) != self.sha256:
            return "is damaged: its SHA-256 is not that of what was written"
        return None


def write_manifest(folder: Path) -> None:
    """Sync all files of ``folder`` to disk, then write their manifest. Model cards are not listed,
    as later scores change them.
    """
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != CARD
    )
    with ThreadPoolExecutor(_THREADS) as pool:
        listed = list(pool.map(lambda name: _written(folder / name), names))
    files = dict(zip(names, listed, strict=True))
    with (folder / MANIFEST).open("w") as file:
        file.write(_text(files))
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> dict[str, Listed]:
    """Read the manifest of a checkpoint: its files, by their paths in ``folder``.

    Raises:
        ValueError: if the manifest is missing or damaged, or deleting pairs was interrupted.
    """
    require_deleted(folder)
    path = folder / MANIFEST
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
    """Sync ``new`` files to disk, and return the manifest that lists them in place of the old, by
    the paths that they will have in the checkpoint.

    Raises:
        ValueError: if the checkpoint's manifest is missing or damaged.
    """
    return _text(read_manifest(folder) | {k: _written(path) for k, path in new.items()})


def damage(folder: Path, patterns: Iterable[str] | None = None) -> str | None:
    """Describe the first damaged file of a checkpoint; return ``None`` if all are intact.

    Args:
        patterns: names of files to verify, such as ``model*.safetensors``; ``None``: all.
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
        found = pool.map(lambda name: _damage(folder / name, files.get(name)), names)
        return next(filter(None, found), None)


def require_deleted(folder: Path) -> None:
    """Check that ``erjepa memory forget`` has moved its new files into place.

    Raises:
        ValueError: naming the command that does, if it was interrupted.
    """
    if not (folder / PENDING).is_dir():
        return
    run = next((f for f in (folder, folder.parent) if (f / DELETIONS).is_file()), "RUN")
    raise ValueError(
        f"{folder}: deleting pairs of its memory was interrupted; finish it with the same "
        f"command, erjepa memory forget {run} ...; the last line of the run's {DELETIONS} "
        "names the pairs"
    )


def _text(files: Mapping[str, Listed]) -> str:
    """Return the manifest as text, with its own digest, so that any change is detected."""
    plain = {name: asdict(listed) for name, listed in files.items()}
    digest = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
    return json.dumps({"files": plain, "sha256": digest}, indent=2) + "\n"


def _damage(path: Path, listed: Listed | None) -> str | None:
    if listed is None:
        return f"{path} is not listed in {MANIFEST}"
    try:
        with open_regular(path) as file:
            difference = listed.difference(file)
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read: {error}"
    return difference and f"{path} {difference}"


def _written(path: Path) -> Listed:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return Listed(os.fstat(file.fileno()).st_size, sha256_of(file))
