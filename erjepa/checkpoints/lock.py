"""The lock on an output folder: one run, or one grid of runs, writes there at a time."""

import contextlib
import json
import logging
import os
import socket
import time
import weakref
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from erjepa.utils.checked import read_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

LOCK = ".lock"
_PATIENCE = 30.0  # seconds to wait for the child processes of a killed holder to end


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock: the content of its file."""

    what: str
    pid: int
    host: str
    since: str


class FolderLock:
    """Exclusive lock on ``folder``, held until ``release()`` or the end of the process.

    The system releases the lock of a killed process, but its lock file, which names the holder,
    stays. Without ``flock``, as on Windows or some network drives, a warning replaces the lock.

    Args:
        folder: created if absent.
        what: kind of holder for messages, such as ``run`` or ``grid``.
        inherited: whether child processes hold the lock too, until the last of them ends.

    Raises:
        BlockingIOError: naming the holder, if the folder is locked.
        OSError: naming the lock file, if the disk is full.
    """

    def __init__(self, folder: Path, what: str, *, inherited: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        deadline = time.monotonic() + _PATIENCE
        while True:
            self._file = (folder / LOCK).open("a+")
            # A holder that ends removes the file.
            if self._try_lock() and self._is_in_place():
                break
            self._file.close()
            holder = holder_of(folder)
            if _is_alive(holder) or time.monotonic() > deadline:
                raise BlockingIOError(_refusal(folder, what, holder))
            time.sleep(0.1)
        self._file.truncate(0)
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        holder = Holder(what, os.getpid(), socket.gethostname(), now)
        try:
            os.write(self._file.fileno(), json.dumps(asdict(holder)).encode() + b"\n")
        except OSError as error:  # a full disk
            raise OSError(error.errno, error.strerror, str(folder / LOCK)) from error
        if not inherited and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._file.close)
        # Releases the lock and removes its file.
        self.release = weakref.finalize(
            self, _release, self._file, folder / LOCK, os.getpid()
        )

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def fileno(self) -> int:
        """Return the file descriptor of the lock, for child processes that hold it too."""
        return self._file.fileno()

    def require_folder(self) -> None:
        """Check that the locked folder is still in place.

        Raises:
            FileNotFoundError: if it was deleted or replaced.
        """
        if not self._is_in_place():
            raise FileNotFoundError(
                f"output_dir={self._folder} was deleted or replaced while the run was going"
            )

    def _is_in_place(self) -> bool:
        try:
            current = os.stat(self._folder / LOCK)
        except FileNotFoundError:
            return False
        return os.path.samestat(current, os.fstat(self._file.fileno()))

    def _try_lock(self) -> bool:
        if fcntl is None:
            log.warning(
                f"This system has no file locks: make sure that only one run writes to "
                f"{self._folder}."
            )
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            log.warning(
                f"{self._folder} cannot be locked ({error}): make sure that only one run "
                "writes to it."
            )
        return True


def is_locked(folder: Path) -> bool:
    """Return whether a :class:`FolderLock` holds ``folder``; False where locks do not work."""
    if fcntl is None or not (folder / LOCK).exists():
        return False
    with (folder / LOCK).open() as file, contextlib.suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def holder_of(folder: Path) -> Holder | None:
    """Return the process that holds the lock on ``folder``, or was killed while it did."""
    try:
        return read_json(Holder, folder / LOCK)
    except (FileNotFoundError, ValueError):  # a holder is writing the file
        return None


def _release(file: TextIO, path: Path, pid: int) -> None:
    """Close the file, and remove it unless another process holds the lock."""
    file.close()
    if fcntl is None or os.getpid() != pid:
        return
    with contextlib.suppress(OSError), path.open() as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(again.fileno())):
            path.unlink()


def _is_alive(holder: Holder | None) -> bool:
    """Return whether the holder's process is alive; on another host it is assumed to be."""
    if holder is None:
        return False
    if holder.host != socket.gethostname():
        return True
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _refusal(folder: Path, what: str, holder: Holder | None) -> str:
    who = f"another {holder.what if holder else what} is running on {folder}"
    if holder:
        who += f": process {holder.pid} on {holder.host}, since {holder.since}"
    return f"{who}; wait for it, end it, or choose another output_dir"
