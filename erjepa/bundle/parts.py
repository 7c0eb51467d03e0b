"""A tar in parts of a bounded size, and the sums that tell a missing or damaged part."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from erjepa.utils.files import sha256_of

SUMS = "SHA256SUMS"


class Parts(io.RawIOBase):
    """A file that is written across ``part_000``, ``part_001`` and so on.

    Args:
        folder (Path): where the parts go.
        max_size (int): most bytes of a part.
    """

    def __init__(self, folder: Path, max_size: int) -> None:
        self._folder = folder
        self._max_size = max_size
        self.names: list[str] = []
        self._left = 0
        self._part: io.BufferedWriter | None = None

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # type: ignore[no-untyped-def, override]
        """Write ``data``, which may begin a part and end one."""
        view = memoryview(data).cast("B")
        size = len(view)
        while len(view):
            if not self._left:
                self._next()
            taken = view[: self._left]
            assert self._part is not None
            self._part.write(taken)
            self._left -= len(taken)
            view = view[len(taken) :]
        return size

    def close(self) -> None:
        """End the last part."""
        if self._part is not None:
            self._part.close()
            self._part = None
        super().close()

    def _next(self) -> None:
        if self._part is not None:
            self._part.close()
        self.names.append(f"part_{len(self.names):03}")
        self._part = (self._folder / self.names[-1]).open("wb")
        self._left = self._max_size


def write_parts(
    folder: Path, contents: Iterable[tuple[Path, str]], max_size: int
) -> int:
    """Write files and folders as one tar in parts, and their sums.

    Args:
        folder (Path): where the parts go.
        contents (Iterable[tuple[Path, str]]): files and folders, with their names inside.
        max_size (int): most bytes of a part.

    Returns:
        int: how many parts.
    """
    parts = Parts(folder, max_size)
    with parts, tarfile.open(fileobj=parts, mode="w|") as tar:
        for path, name in contents:
            tar.add(path.resolve(), name)
    sums = [f"{sha256_of(folder / name)}  {name}\n" for name in parts.names]
    (folder / SUMS).write_text("".join(sums))
    return len(parts.names)
