"""Write a memory as chats, for another trainer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from erjepa.checkpoints.output_file import require_new
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
    require_new("FILE", file)
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
