"""Write a memory as chats, for another trainer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from erjepa.checkpoints.checkpoint import PROGRESS
from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS
from erjepa.checkpoints.memory_file import ABOUT
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.commands.memory.reading import read_slots, texts_of
from erjepa.utils.files import CONFIG, write_whole
from erjepa.utils.jsonl import to_jsonl


def export(run: Path, file: Path) -> int:
    """Write the memory of a run or checkpoint as chats; return their number.

    Raises:
        FileExistsError: if ``file`` exists.
        FileNotFoundError: if there is no memory.
        ValueError: if the memory is damaged, or ``file`` would be in it.
    """
    require_free("FILE", file)
    if file.exists():
        raise FileExistsError(f"{file} exists; choose another name")
    stored = open_memory(run)
    write_whole(file, to_jsonl(chats(stored)))
    return len(stored)


def chats(stored: StoredMemory) -> Iterator[dict[str, Any]]:
    """Yield the pairs of a memory as chats, in the order of its slots.

    Raises:
        FileNotFoundError: if the run's config, which names the tokenizer, is missing.
        ValueError: if a slot holds no chat.
    """
    texts = texts_of(stored)
    if texts is None:
        raise FileNotFoundError(
            f"{stored.folder}: neither of the folders around it has a {CONFIG}, which names "
            "the tokenizer; copy it there"
        )
    slots = read_slots(stored).itertuples()
    for slot, pair in zip(slots, stored.pairs, strict=True):
        try:
            messages = texts.messages(pair.segments)
        except ValueError as error:
            raise ValueError(f"{slot.where}: {error}") from None
        yield {"messages": messages, "origin": slot.origin, "where": slot.where}


def require_free(option: str, path: Path) -> None:
    """Raise if a file would be in a checkpoint or a memory, or replace a run's log."""
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{option} {path}: {path.parent} is not a folder")
    file = path.resolve()
    marks = [folder / mark for folder in file.parents for mark in (PROGRESS, ABOUT)]
    if file.name == EXAMPLE_ERRORS or any(mark.exists() for mark in marks):
        raise ValueError(f"{option} {path} is a run's own; choose a file elsewhere")
