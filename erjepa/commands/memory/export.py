"""Write a memory as chats, for another trainer."""

from pathlib import Path

from erjepa.checkpoints.output_file import require_new
from erjepa.checkpoints.stored_memory import open_memory
from erjepa.commands.memory.reading import read_slots, texts_of
from erjepa.utils.files import CONFIG, write_whole
from erjepa.utils.jsonl import to_jsonl


def export(run: Path, file: Path) -> int:
    """Write the memory of a run or checkpoint as chats, in the order of its slots.

    Returns:
        Their number.

    Raises:
        FileExistsError: if ``file`` exists.
        FileNotFoundError: if there is no memory, or no config that names its tokenizer.
        ValueError: if the memory is damaged, a slot holds no chat, or ``file`` would be in it.
    """
    require_new("FILE", file)
    stored = open_memory(run)
    if (texts := texts_of(stored)) is None:
        raise FileNotFoundError(
            f"{stored.folder}: neither of the folders around it has a {CONFIG}, which names "
            "the tokenizer; copy it there"
        )
    chats = []
    slots = read_slots(stored).itertuples()
    for slot, pair in zip(slots, stored.pairs, strict=True):
        try:
            messages = texts.messages(pair.segments)
        except ValueError as error:
            raise ValueError(f"{slot.where}: {error}") from None
        chats.append({"messages": messages, "origin": slot.origin, "where": slot.where})
    write_whole(file, to_jsonl(chats))
    return len(chats)
