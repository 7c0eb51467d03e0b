"""Loading of the raw records of a dataset, each with the place where it was read.

============================================  ===================
source                                        place of a record
============================================  ===================
JSON lines: ``.jsonl``, ``.ndjson``           ``FILE:LINE``
table: ``.csv`` (``,`` ``;`` tab), ``.tsv``   ``FILE:LINE``
JSON array: ``.json``                         ``FILE[INDEX]``
``.parquet``                                  ``FILE[INDEX]``
folder with one file named after the split    as for that file
folder of tables                              as for these files
other folders that ``datasets`` can load      ``FOLDER[INDEX]``
dataset of the hub                            ``NAME[INDEX]``
============================================  ===================

Lines count from 1, indices from 0. Text files are read here instead of by ``datasets``, so that
an error can name its line, and ``007`` or ``NA`` in a table remains a string.
"""

import codecs
import contextlib
import csv
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from unittest.mock import patch
from urllib.parse import urlsplit

from erjepa.utils.escape import one_line
from erjepa.utils.files import relative_note, require_utf8
from erjepa.utils.hub import is_reachable, is_repository
from erjepa.utils.jsonl import parse_json, read_jsonl


class Record(NamedTuple):
    """A raw example and the place where it was read, for messages."""

    where: str
    fields: dict[str, Any]


class Located(Exception):
    """Raised by :func:`load_records` in place of reading, see :func:`only_locating`."""


_only_locates = ContextVar("_only_locates", default=False)


@contextlib.contextmanager
def only_locating() -> Iterator[None]:
    """End the block where :func:`load_records` would read: its source, if a path, exists."""
    token = _only_locates.set(True)
    try:
        with contextlib.suppress(Located):
            yield
    finally:
        _only_locates.reset(token)


def load_records(
    source: str, *, split: str = "train", **load_dataset_kwargs: Any
) -> list[Record]:
    """Read records from a file, a URL of one, a folder, or the Hugging Face hub.

    Args:
        split: split of a folder or a hub dataset, or parts such as ``train[:50%]``. The name of a
            split is ignored for a file, which has no parts.
        **load_dataset_kwargs: for ``datasets.load_dataset`` of the hub, such as ``revision``.

    Raises:
        FileNotFoundError: if ``source`` does not exist and cannot be a name of the hub.
        ConnectionError: if a URL or a hub dataset cannot be read.
        ValueError: if something is not a record, naming its place, there are no records, or parts
            of a file are wanted.
    """
    path = Path(source)
    is_url, is_folder = "://" in source, path.is_dir()
    is_of_hub = is_repository(source) and path.suffix.lower() not in _FILES
    if not (is_url or is_folder or is_of_hub):
        _reader(path, source)
    if "[" in split and not (is_folder or is_of_hub):
        raise ValueError(
            f"dataset.split={split}: {source} is a file, which is read as a whole; to hold out "
            "pairs set validation.size, to read fewer dataset.max_examples"
        )
    if _only_locates.get():
        raise Located
    if is_url:
        records = _read_file(_download(source), source)
    elif is_folder:
        read = _read_parts if "[" in split else _read_folder
        records = read(path, split)
    elif is_of_hub:
        records = _read_hub(source, split, load_dataset_kwargs)
    else:
        records = _read_file(path, source)
    if not records:
        raise ValueError(f"{source}: no records")
    return records


def flat(records: Iterable[Record]) -> list[Record]:
    """Return records whose nested fields are columns ``OUTER.INNER``; lists stay."""
    return [Record(where, _flat(fields)) for where, fields in records]


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    while any(isinstance(value, dict) for value in fields.values()):
        parts = (
            {f"{name}.{inner}": item for inner, item in value.items()}
            if isinstance(value, dict)
            else {name: value}
            for name, value in fields.items()
        )
        fields = dict(item for part in parts for item in part.items())
    return fields


def _read_file(path: Path, name: str) -> list[Record]:
    """Read the records of a file; their places name it ``name``."""
    return [Record(*read) for read in _reader(path, name)(path, name)]


def _reader(path: Path, name: str) -> Callable[..., Iterator[tuple[str, Any]]]:
    """Return what reads a file; a file that is missing or of another type is an error."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file or folder; set dataset.source to a file, a folder, "
            f"a URL or a dataset of the Hugging Face hub, OWNER/NAME{relative_note(path)}"
        )
    suffix = _suffix(name)
    if suffix not in _READERS:
        way = "; save its table as CSV" if suffix in _SPREADSHEETS else ""
        raise ValueError(f"{name}: expected a file {', '.join(_READERS)}{way}")
    return _READERS[suffix]


def _suffix(name: str) -> str:
    return Path(urlsplit(name).path if "://" in name else name).suffix.lower()


def _read_json(path: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read an array of objects, or JSON lines, which may have the same suffix."""
    content = path.read_bytes()
    if not content.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        yield from read_jsonl(path, name)
        return
    rows = parse_json(content, name)
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(
                f"{name}[{i}]: expected a JSON object, got {type(row).__name__}"
            )
        yield f"{name}[{i}]", row


def _read_table(path: Path, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Read the rows below a line of column names; every cell is a string."""
    with path.open("rb") as content:
        require_utf8(content.read(), name)
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        delimiter = "\t" if _suffix(name) == ".tsv" else _delimiter(lines)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        columns: list[str] | None = None
        line = 1
        try:
            for row in reader:
                where, line = f"{name}:{line}", reader.line_num + 1
                if not row:
                    continue
                if columns is None:
                    columns = row
                    if "" in row or len(set(row)) < len(row):
                        raise ValueError(
                            f"{where}: the first line names the columns, each once, got {row}"
                        )
                elif len(row) != len(columns):
                    raise ValueError(
                        f"{where}: {len(row)} cells, but {len(columns)} columns ({columns}), "
                        f"separated by {delimiter!r}"
                    )
                else:
                    yield where, dict(zip(columns, row, strict=True))
        except csv.Error as error:
            raise ValueError(f"{name}:{line}: not a row ({error})") from None


def _delimiter(lines: TextIO) -> str:
    """Return the delimiter that gives the first rows the same number of cells, more than one;
    otherwise the one that gives the header most.
    """

    def fit(delimiter: str) -> tuple[bool, int]:
        lines.seek(0)
        widths = []
        try:
            for row in islice(csv.reader(lines, delimiter=delimiter, strict=True), 20):
                if row:
                    widths.append(len(row))
        except csv.Error:
            widths.append(0)
        header, *others = widths or [0]
        return header > 1 and {*others} <= {header}, header

    best = max((",", ";", "\t"), key=fit)
    lines.seek(0)
    return best


def _read_parquet(path: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    from pyarrow import ArrowException, parquet  # slow to import

    try:
        table = parquet.ParquetFile(path).read()
        if len(set(table.column_names)) < table.num_columns:
            raise ValueError(f"columns {table.column_names}, not each once")
        table.validate(full=True)  # unlike to_pylist, says where a text is not UTF-8
        rows = table.to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        raise ValueError(
            f"{name}: not a parquet file of records ({one_line(str(error))})"
        ) from None
    return ((f"{name}[{i}]", row) for i, row in enumerate(rows))


_READERS: dict[str, Callable[..., Iterator[tuple[str, Any]]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
}


_SPREADSHEETS = (".xlsx", ".xls", ".ods")
# Sources with these suffixes are files, not hub datasets.
_FILES = (*_READERS, *_SPREADSHEETS, ".txt", ".gz", ".zip")


def _read_parts(folder: Path, split: str) -> list[Record]:
    """Read parts of splits, written as for ``datasets``: ``train[:50%]+test[:9]``."""
    from datasets import ReadInstruction

    names = {part.partition("[")[0].strip() for part in split.split("+")}
    records = {name: _read_folder(folder, name) for name in names}
    sizes = {name: len(of_split) for name, of_split in records.items()}
    try:
        parts = ReadInstruction.from_spec(split).to_absolute(sizes)
    except ValueError as error:
        raise ValueError(f"{folder}: dataset.split={split}: {error}") from None
    return [r for part in parts for r in records[part.splitname][part.from_ : part.to]]


def _read_folder(folder: Path, split: str) -> list[Record]:
    """Read the only file of the split, or, if there is none, load the folder with ``datasets``."""
    from datasets import DatasetDict, load_dataset, load_from_disk

    if "+" in split and not (folder / "state.json").exists():
        return _read_parts(folder, split)
    files = [file for s in _READERS if (file := folder / f"{split}{s}").is_file()]
    if len(files) == 1:
        return _read_file(files[0], str(files[0]))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ValueError(
            f"{folder} has several files of split {split!r}, {names}; set the dataset's "
            "source to one of them"
        )
    tables, splits = list[Path](), dict[str, Any]()
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            saved = load_from_disk(str(folder))
            if isinstance(saved, DatasetDict):
                splits = dict(saved)
            else:  # whose split is named as it was loaded, such as train[:50%], or not at all
                splits = {re.sub(r"\[.*?\]", "", str(saved.split or split)): saved}
        elif not (tables := _tables(folder, split)):
            splits = {split: load_dataset(str(folder), split=split)}
        if split in splits:
            rows = enumerate(splits[split])
            return [Record(f"{folder}[{i}]", row) for i, row in rows]
    except Exception as error:  # the libraries that read it raise errors of many types
        raise ValueError(
            f"{folder} could not be read ({type(error).__name__}: {one_line(str(error))}). "
            f"Expected what save_to_disk wrote, or {split}.jsonl, .json, .csv, .tsv or .parquet."
        ) from None
    if tables:
        return [record for file in tables for record in _read_file(file, str(file))]
    raise ValueError(
        f"{folder}: no split {split!r}; it has {list(splits)}. Set the dataset's split"
    )


def _tables(folder: Path, split: str) -> list[Path]:
    """Return the files of a split that ``datasets`` finds, if they are tables as read here, where
    every cell is a text: ``datasets`` would read some as numbers.
    """
    from datasets import load_dataset_builder

    config = load_dataset_builder(str(folder)).config
    files = [Path(file) for file in (config.data_files or {}).get(split, ())]
    is_read_here = getattr(config, "sep", None) in (",", "\t")
    is_table = all(file.suffix in (".csv", ".tsv") for file in files)
    return files if is_read_here and is_table else []


def _read_hub(name: str, split: str, kwargs: dict[str, Any]) -> list[Record]:
    from datasets import config, load_dataset

    # Without it, load_dataset retries for half a minute before it looks into its cache.
    is_offline = config.HF_HUB_OFFLINE or not is_reachable()
    with (
        patch.object(config, "HF_HUB_OFFLINE", is_offline),
        _reading(f"{name} is no file or folder here, and on the hub it"),
    ):
        rows = load_dataset(name, split=split, **kwargs)
        return [Record(f"{name}[{i}]", row) for i, row in enumerate(rows)]


def _download(url: str) -> Path:
    from datasets import DownloadManager

    with _reading(url):
        return Path(DownloadManager().download(url))


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the libraries that read it raise errors of many types
        raise ConnectionError(
            f"{what} could not be read ({type(error).__name__}: {one_line(str(error))}). "
            "With a copy at hand, set dataset.source to its file or folder."
        ) from error
