"""What a memory holds, as text, a table and a page."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from erjepa.commands.memory.export import require_free
from erjepa.commands.memory.page import page
from erjepa.commands.memory.reading import Neighbors, Slot
from erjepa.commands.memory.suspects import Reading, read_suspects
from erjepa.utils.escape import counted, csv_cell, one_line
from erjepa.utils.files import write_whole

_WIDTH = 60  # characters of a source or target


def show(
    run: Path,
    top: int,
    *,
    near: int | None = None,
    prompt: str | None = None,
    overrides: Sequence[str] = (),
    csv_file: Path | None = None,
    html_file: Path | None = None,
) -> list[str]:
    """Read a memory; as lines of text, and into files.

    Args:
        top: lines of each list.
        near: a slot, to show those most like it.
        prompt: to show the slots most like it, by the run's model with ``overrides`` of its config.
        csv_file, html_file: where all slots, and a page, are written.

    Raises:
        FileNotFoundError: if there is no memory.
        ValueError: if it is not whole, or a file to write is a run's own.
    """
    for option, path in (("--csv", csv_file), ("--html", html_file)):
        if path is not None:
            require_free(option, path)
    reading = read_suspects(run)
    if near is not None:
        lines = neighbors(reading, near, top)
    elif prompt is not None:
        lines = like_prompt(reading, prompt, top, overrides)
    else:
        lines = summary(reading, top)
    if csv_file is not None:
        write_whole(csv_file, to_csv(reading.slots))
    if html_file is not None:
        write_whole(html_file, page(reading))
    return lines


def summary(reading: Reading, top: int) -> list[str]:
    """What is in a memory, as lines of text, ``top`` of each list."""
    slots, stored = reading.slots, reading.stored
    capacity = stored.about.state.memory.capacity
    held = counted(len(slots), "pair")
    lines = [f"{stored.folder} holds {held}; its capacity is {capacity:,}.", ""]
    for origin in dict.fromkeys(slot.origin for slot in slots):
        own = [slot for slot in slots if slot.origin == origin]
        mean = sum(slot.score for slot in own) / len(own)
        replays = sum(slot.replay_count for slot in own) / len(own)
        lines.append(
            f"{len(own):>8} from {one_line(origin)}: mean score {mean:.4f}, {replays:.2f} replays each"
        )
    never = [slot for slot in slots if not slot.replay_count]
    lists = {
        "The hardest": sorted(slots, key=lambda slot: -slot.score),
        "The most replayed": sorted(slots, key=lambda slot: -slot.replay_count),
        f"Never replayed, {len(never)} in all": never,
    }
    suspects = [slot for slot in slots if slot.flags]
    if reading.found:
        learned = sum(t.learned for t in reading.found.values())
        events = sum(t.forgetting_events for t in reading.found.values())
        lines += [
            "",
            f"Learned: {learned} of {counted(len(reading.found), 'example')}, after "
            f"{counted(events, 'forgetting event')}.",
        ]
        suspects.sort(key=lambda slot: -_late_error(reading, slot))
    lists[f"Suspect, {len(suspects)} in all"] = suspects
    for title, chosen in lists.items():
        lines += ["", f"{title}:", *map(_line, chosen[:top])]
    return lines


def _late_error(reading: Reading, slot: Slot) -> float:
    found = reading.found.get(slot.example)
    return found.late_error if found else 0.0


def neighbors(reading: Reading, slot: int, top: int) -> list[str]:
    """A slot and those whose sources are most like its own, as lines of text.

    Raises:
        ValueError: if there is no such slot, or the memory holds no addresses.
    """
    if not 0 <= slot < len(reading.slots):
        raise ValueError(
            f"--neighbors {slot}: the memory has slots 0 to {len(reading.slots) - 1}"
        )
    _require_addresses(reading, f"--neighbors {slot}")
    found = Neighbors(reading.stored).of(slot, top)
    return [_line(reading.slots[slot]), *_with_cosines(reading, found)]


def like_prompt(
    reading: Reading, prompt: str, top: int, overrides: Sequence[str] = ()
) -> list[str]:
    """The slots whose sources are most like a prompt, as the checkpoint's model embeds it.

    Raises:
        ValueError: if the memory is empty, or the prompt is.
    """
    if not reading.slots:
        raise ValueError(f"--prompt: the memory in {reading.stored.folder} is empty")
    _require_addresses(reading, "--prompt")
    # Only this needs the model, and what loads it.
    from erjepa.commands.memory.prompt import prompt_embedding

    checkpoint = reading.stored.folder.absolute().parent
    embedding = prompt_embedding(checkpoint, prompt, overrides)
    return _with_cosines(
        reading, Neighbors(reading.stored).of_embedding(embedding, top)
    )


def _require_addresses(reading: Reading, option: str) -> None:
    if not reading.stored.has_addresses:
        raise ValueError(
            f"{option}: the memory holds no addresses; its run replayed by token loss, with "
            "a selection that needs none"
        )


def _with_cosines(reading: Reading, found: Iterable[tuple[int, float]]) -> list[str]:
    return [
        f"{cosine:8.4f} {_line(reading.slots[slot]).strip()}" for slot, cosine in found
    ]


def _line(slot: Slot) -> str:
    flags = f" [{'; '.join(slot.flags)}]" if slot.flags else ""
    return (
        f"{slot.slot:>8} {slot.score:.4f} {slot.replay_count:>4}x {one_line(slot.where)}: "
        f"{one_line(slot.source, _WIDTH)} -> {one_line(slot.target, _WIDTH)}{flags}"
    )


def to_csv(slots: Iterable[Slot]) -> str:
    """A line of names, and one for each slot."""
    rows = [slot.row() for slot in slots]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else ["slot"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: csv_cell(v) for k, v in row.items()} for row in rows)
    return text.getvalue()
