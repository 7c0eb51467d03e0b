"""Files that one part writes and another reads: their names, their encoding, whole or absent."""

import codecs
import hashlib
import os
from io import BufferedReader
from pathlib import Path

# Of an evaluation.
PREDICTIONS = "predictions.jsonl"
SUMMARY = "summary.json"
# Of a run: its config, with every key, as torchtune's metric loggers write it.
CONFIG = "torchtune_config.yaml"
# In a checkpoint: the averaged weights, in a folder.
EMA = "ema"
# Of an experiment.
EXPERIMENT = "experiment.json"
RESULTS = "results.jsonl"

_CHUNK = 1 << 20  # bytes


def config_of_run(path: Path) -> Path | None:
    """The config of the run whose folder, checkpoint, or folder in a checkpoint ``path`` is."""
    near = (path, *path.absolute().parents[:2], *path.resolve().parents[:2])
    files = (folder / CONFIG for folder in near)
    return next((file for file in files if file.is_file()), None)


def require_utf8(content: bytes, name: str, line: int = 1) -> None:
    """Fail where a text is of another encoding.

    Raises:
        ValueError: naming line and column of the first byte that is no UTF-8.
    """
    try:
        content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        line += before.count("\n")
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        known, encoding = ("UTF-16", "UTF-16") if is_utf16 else ("Latin-1", "LATIN1")
        raise ValueError(
            f"{name}:{line}: not UTF-8 (byte 0x{content[error.start]:02x}, column "
            f"{len(before) - before.rfind(chr(10))}); if it is {known}, convert it: "
            f"iconv -f {encoding} -t UTF-8"
        ) from None


def write_whole(path: Path, text: str, writer: str = "") -> None:
    """Write a file aside, then put it in place: a killed process leaves the file before.

    ``writer`` tells this process from others that may write the file at once.
    """
    aside = path.with_name(f".{path.name}{writer}")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def let_others_read(folder: Path) -> None:
    """Give all files below ``folder`` the mode of a file that this process opens to write:
    safetensors and others keep theirs to the user alone.
    """
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o666 & ~mask)


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is a FIFO, a device or a folder, which opening might wait for.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    return path.open("rb")


def sha256_of(file: BufferedReader) -> str:
    """SHA-256 of a whole open file, in hexadecimal; the file is left at its start."""
    digest, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    file.seek(0)
    while size := file.readinto(chunk):
        digest.update(chunk[:size])
    file.seek(0)
    return digest.hexdigest()
