"""Show the contents of a memory, as text and as a table."""

import csv
import io
from collections.abc import Iterable, Sequence

from erjepa.commands.memory.reading import Neighbors, Slot
from erjepa.commands.memory.trajectories import Contents
from erjepa.utils.escape import counted, csv_cell, one_line

_WIDTH = 60  # characters of a source or target


def summary(memory: Contents, top: int) -> list[str]:
    """Summarize a memory in lines of text, with ``top`` slots in each list."""
    slots, stored = memory.slots, memory.stored
    capacity = stored.about.state.memory.capacity
    held = counted(len(slots), "pair")
    lines = [f"{stored.folder} holds {held}; its capacity is {capacity:,}.", ""]
    for origin in dict.fromkeys(slot.origin for slot in slots):
        own = [slot for slot in slots if slot.origin == origin]
        mean = sum(slot.score for slot in own) / len(own)
        replays = sum(slot.replay_count for slot in own) / len(own)
        lines.append(
            f"{len(own):>8} from {one_line(origin)}: mean score {mean:.4f}, "
            f"{replays:.2f} replays each"
        )
    never = [slot for slot in slots if not slot.replay_count]
    lists = {
        "The hardest": sorted(slots, key=lambda slot: -slot.score),
        "The most replayed": sorted(slots, key=lambda slot: -slot.replay_count),
        f"Never replayed, {len(never)} in all": never,
    }
    suspects = [slot for slot in slots if slot.flags]
    if memory.found:
        learned = sum(t.learned for t in memory.found.values())
        events = sum(t.forgetting_events for t in memory.found.values())
        lines += [
            "",
            f"Learned: {learned} of {counted(len(memory.found), 'example')}, after "
            f"{counted(events, 'forgetting event')}.",
        ]
        late_errors = {i: t.late_error for i, t in memory.found.items()}
        suspects.sort(key=lambda slot: -late_errors.get(slot.example, 0.0))
    lists[f"Suspect, {len(suspects)} in all"] = suspects
    for title, chosen in lists.items():
        lines += ["", f"{title}:", *map(_line, chosen[:top])]
    return lines


def neighbors(memory: Contents, slot: int, top: int) -> list[str]:
    """Show a slot and its ``top`` nearest neighbors, in lines of text.

    Raises:
        ValueError: if there is no such slot, or the memory holds no addresses.
    """
    if not 0 <= slot < len(memory.slots):
        raise ValueError(
            f"--neighbors {slot}: the memory has slots 0 to {len(memory.slots) - 1}"
        )
    found = Neighbors(memory.stored).of(slot, top)
    return [_line(memory.slots[slot]), *_with_cosines(memory, found)]


def like_prompt(
    memory: Contents, prompt: str, top: int, overrides: Sequence[str] = ()
) -> list[str]:
    """Show the slots most similar to a prompt, embedded by the checkpoint's model.

    Raises:
        ValueError: if the memory is empty or holds no addresses, or the prompt is empty.
    """
    if not memory.slots:
        raise ValueError(f"--prompt: the memory in {memory.stored.folder} is empty")
    alike = Neighbors(memory.stored)
    # A slow import, since it loads a model.
    from erjepa.commands.memory.prompt import prompt_embedding

    checkpoint = memory.stored.folder.absolute().parent
    embedding = prompt_embedding(checkpoint, prompt, overrides)
    return _with_cosines(memory, alike.of_embedding(embedding, top))


def _with_cosines(memory: Contents, found: Iterable[tuple[int, float]]) -> list[str]:
    return [
        f"{cosine:8.4f} {_line(memory.slots[slot]).strip()}" for slot, cosine in found
    ]


def _line(slot: Slot) -> str:
    flags = f" [{'; '.join(slot.flags)}]" if slot.flags else ""
    return (
        f"{slot.slot:>8} {slot.score:.4f} {slot.replay_count:>4}x {one_line(slot.where)}: "
        f"{one_line(slot.source, _WIDTH)} -> {one_line(slot.target, _WIDTH)}{flags}"
    )


def to_csv(memory: Contents) -> str:
    """Return the slots as CSV, with a header."""
    rows = [slot.row() for slot in memory.slots]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else ["slot"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: csv_cell(v) for k, v in row.items()} for row in rows)
    return text.getvalue()
