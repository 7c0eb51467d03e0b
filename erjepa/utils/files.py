"""Names of files that several packages use, and functions to read and write files."""

import codecs
import hashlib
import os
import socket
import threading
from io import BufferedReader
from pathlib import Path

# In the folder of an evaluation.
PREDICTIONS = "predictions.jsonl"
SUMMARY = "summary.json"
# In the folder of a run: its config with every key, written by torchtune's metric loggers.
CONFIG = "torchtune_config.yaml"
# In the folder of a run, and in its checkpoints: the model card.
CARD = "README.md"
# In a checkpoint: the folder of the averaged weights, and of the adapter for PEFT.
EMA = "ema"
PEFT = "adapter"
# In the folder of an experiment.
EXPERIMENT = "experiment.json"
RESULTS = "results.jsonl"

_CHUNK = 1 << 20  # bytes


def config_of_run(path: Path) -> Path | None:
    """Find the config of a run, given its folder, a checkpoint, or a folder in a checkpoint."""
    near = (path, *path.absolute().parents[:3], *path.resolve().parents[:3])
    files = (folder / CONFIG for folder in near)
    return next((file for file in files if file.is_file()), None)


def moved_along(path: str, output_dir: str, folder: Path) -> Path:
    """Return where a path in a run's config lies now: if it was moved along with the run, in the
    same place relative to it; otherwise the path unchanged.

    Args:
        path: absolute or, as ``output_dir``, relative to the folder in which the run was started.
        output_dir: that of the config.
        folder: where the run is now.
    """
    given = Path(path)
    if given.is_absolute() and given.exists():
        return given
    # The run was started in some folder above an absolute path, if output_dir is relative.
    started_in = reversed(given.parents) if given.is_absolute() else [Path.cwd()]
    for start in started_in:
        relative = os.path.relpath(given, start / output_dir)
        moved = Path(os.path.normpath(folder.absolute() / relative))
        is_known = moved.exists() or config_of_run(moved)  # a deleted checkpoint
        if is_known and moved != given.absolute():
            return moved
    return given


def relative_note(path: str | Path) -> str:
    """Return the end of a message on a missing path: where it was looked for, if relative."""
    if os.path.isabs(path):
        return ""
    return f"; a relative path is read from the current folder, {os.getcwd()}"


def require_utf8(content: bytes, name: str, line: int = 1) -> None:
    """Raise a ValueError, with line and column of the first invalid byte, if it is not UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        line += before.count("\n")
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        # Windows-1252 has Latin-1's letters, and quotes where that has control characters.
        known, encoding = (
            ("UTF-16", "UTF-16") if is_utf16 else ("Windows-1252 or Latin-1", "CP1252")
        )
        raise ValueError(
            f"{name}:{line}: not UTF-8 (byte 0x{content[error.start]:02x}, column "
            f"{len(before) - before.rfind(chr(10))}); if it is {known}, convert it: "
            f"iconv -f {encoding} -t UTF-8"
        ) from None


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: if the process is killed, the previous file stays.

    Several threads, processes or machines may write it at the same time. A link stays a link.
    """
    path = path.resolve()
    writer = f"{socket.gethostname()}.{threading.get_native_id()}"
    aside = path.with_name(f".{path.name}.{writer}")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def let_others_read(folder: Path) -> None:
    """Set the default mode on all files below ``folder``: safetensors writes private files."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o666 & ~mask)


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: if it is a folder, a device or a FIFO, which could block.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    return path.open("rb")


def sha256_of(file: BufferedReader) -> str:
    """Return the SHA-256 of an open file in hexadecimal, and seek to its start."""
    digest, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    file.seek(0)
    while size := file.readinto(chunk):
        digest.update(chunk[:size])
    file.seek(0)
    return digest.hexdigest()
