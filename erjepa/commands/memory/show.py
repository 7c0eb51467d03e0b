"""Show the contents of a memory, as text and as a table."""

from collections.abc import Sequence

import pandas as pd
import torch

from erjepa.checkpoints.memory_file import TEXTS
from erjepa.commands.memory.reading import (
    address_table,
    has_unverified_texts,
    nearest,
    pair_line,
)
from erjepa.commands.memory.trajectories import Contents
from erjepa.utils.escape import counted, csv_cell, one_line
from erjepa.utils.files import CONFIG


def summary(memory: Contents, top: int) -> list[str]:
    """Summarize a memory in lines of text, with ``top`` slots in each list."""
    slots, examples, stored = memory.slots, memory.examples, memory.stored
    slots_of_all = stored.about.state.memory.capacity
    capacity = stored.about.replay.capacity or slots_of_all
    reserved = slots_of_all - capacity
    also = f", and {counted(reserved, 'slot')} for inherited pairs" * bool(reserved)
    held = counted(len(slots), "pair")
    lines = [f"{stored.folder} holds {held}; its capacity is {capacity:,}{also}.", ""]
    if has_unverified_texts(stored):
        lines.insert(
            1,
            f"The texts of {TEXTS} are not verified: there is no manifest, and no {CONFIG} that "
            "names the tokenizer. Training uses the tokens.",
        )
    for origin, own in slots.sort_values("example").groupby("origin", sort=False):
        lines.append(
            f"{len(own):>8} from {one_line(origin)}: mean score "
            f"{own.score.mean():.4f}, {own.replay_count.mean():.2f} replays each"
        )
    if len(examples):
        events = int(examples.forgotten.sum())
        lines += [
            "",
            f"Learned: {examples.learned.sum()} of {counted(len(examples), 'example')}, "
            f"after {counted(events, 'forgetting event')}.",
        ]
    never = slots[slots.replay_count == 0]
    suspects = slots[slots["flags"] != ""].join(examples.late_error, on="example")
    lists = {
        "The hardest": largest_first(slots, "score"),
        "The most replayed": largest_first(
            slots[slots.replay_count > 0], "replay_count"
        ),
        f"Never replayed, {len(never)} in all": never,
        f"Suspect, {len(suspects)} in all": largest_first(suspects, "late_error"),
    }
    for title, chosen in lists.items():
        if not chosen.empty:
            lines += ["", f"{title}:", *_table(chosen.head(top))]
    return lines


def largest_first(slots: pd.DataFrame, column: str) -> pd.DataFrame:
    """Sort slots by a column; equal ones keep their order, and NaN comes last."""
    return slots.sort_values(column, ascending=False, kind="stable")


def neighbors(memory: Contents, slot: int, top: int) -> list[str]:
    """Show a slot and its ``top`` nearest neighbors, in lines of text.

    Raises:
        ValueError: if there is no such slot, or the memory holds no addresses.
    """
    if not 0 <= slot < len(memory.slots):
        raise ValueError(
            f"--neighbors {slot}: the memory has slots 0 to {len(memory.slots) - 1}"
        )
    table, addresses = address_table(memory.stored)
    cosines = nearest(table, addresses.rows(torch.tensor([slot])), len(memory.slots))
    others = cosines.drop(slot).head(top)
    return [*_table(memory.slots.iloc[[slot]]), "", *_with_cosines(memory, others)]


def like_prompt(
    memory: Contents, prompt: str, top: int, overrides: Sequence[str] = ()
) -> list[str]:
    """Show the slots most similar to a prompt, embedded by the checkpoint's model.

    Raises:
        ValueError: if the memory is empty or holds no addresses, or the prompt is empty.
    """
    if memory.slots.empty:
        raise ValueError(f"--prompt: the memory in {memory.stored.folder} is empty")
    table, _ = address_table(memory.stored)
    # A slow import, since it loads a model.
    from erjepa.commands.memory.prompt import prompt_embedding

    checkpoint = memory.stored.folder.absolute().parent
    address = table.encode(prompt_embedding(checkpoint, prompt, overrides))
    return _with_cosines(memory, nearest(table, address, len(memory.slots)).head(top))


def _with_cosines(memory: Contents, cosines: pd.Series) -> list[str]:
    head, *lines = _table(memory.slots.loc[cosines.index])
    rows = (f"{c:8.4f} {line}" for c, line in zip(cosines, lines, strict=True))
    return [f"{'cosine':>8} {head}", *rows]


def _table(slots: pd.DataFrame) -> list[str]:
    flags = slots["flags"].map(lambda text: f" [{text}]" if text else "")
    return [
        f"{'slot':>8} {'score':>8} {'replays':>8}  pair",
        *(
            f"{row.slot:>8} {row.score:8.4f} {row.replay_count:>8}  {pair_line(row)}{flag}"
            for row, flag in zip(slots.itertuples(), flags, strict=True)
        ),
    ]


def to_csv(memory: Contents) -> str:
    cells = memory.slots.map(csv_cell)
    return cells.to_csv(index=False, na_rep="nan", lineterminator="\n")
