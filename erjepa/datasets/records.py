"""Raw records of a dataset, each with the place it came from."""

from pathlib import Path
from typing import Any, NamedTuple

from erjepa.io import read_jsonl


class Record(NamedTuple):
    """One raw example and where it was read, for messages that name it."""

    where: str
    fields: dict[str, Any]


def load_records(source: str, *, split: str = "train", **load_dataset_kwargs: Any):
    """Read records from a local JSONL file, a URL of one, or the Hugging Face hub.

    Args:
        source (str): path of a ``.jsonl`` file, an ``https://`` URL of one, or the name
            of a dataset on the hub.
        split (str): split of a hub dataset; a file is one split already.
        **load_dataset_kwargs (Any): passed to ``datasets.load_dataset`` for the hub,
            for instance ``name`` or ``revision``.

    Returns:
        list[Record]: the records in order.

    Raises:
        FileNotFoundError: if ``source`` looks like a local file and there is none.
        ConnectionError: if a URL or a dataset of the hub cannot be read.
        ValueError: if a line is not a JSON object, or there is no record at all.
    """
    is_url = "://" in source
    if not is_url and (Path(source).exists() or Path(source).suffix == ".jsonl"):
        records = _read_file(Path(source))
    else:
        from datasets import load_dataset  # heavy, and needed for remote data only

        try:
            if is_url:
                rows = load_dataset("json", data_files=source, split="train")
            else:
                rows = load_dataset(source, split=split, **load_dataset_kwargs)
        except Exception as error:  # of whichever library reads it
            raise ConnectionError(
                f"{source} could not be read ({type(error).__name__}: {error}). With a "
                "copy at hand, set the dataset's source to its file or folder."
            ) from error
        records = [Record(f"{source}[{i}]", row) for i, row in enumerate(rows)]
    if not records:
        raise ValueError(f"{source}: no records; expected one JSON object a line.")
    return records


def _read_file(path: Path) -> list[Record]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; set the dataset's source to a JSONL file, a URL or "
            "a dataset of the Hugging Face hub."
        )
    return [Record(where, fields) for where, fields in read_jsonl(path)]
