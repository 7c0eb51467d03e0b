"""Delete pairs from every memory of a run; see ``erjepa memory forget --help``."""

import contextlib
import hashlib
import os
import shlex
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from erjepa.checkpoints.checkpoint import MEMORY, PROGRESS, SCRATCH
from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS, read_visits, write_visits
from erjepa.checkpoints.lock import FolderLock
from erjepa.checkpoints.manifest import DELETIONS, MANIFEST, PENDING, relisted
from erjepa.checkpoints.memory_file import ABOUT
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.commands.memory.reading import pair_line, read_slots, texts_of
from erjepa.configs import merged, resolved
from erjepa.utils.escape import counted
from erjepa.utils.files import CONFIG, PREDICTIONS, moved_along, write_whole
from erjepa.utils.jsonl import to_jsonl

_ASIDE = ".forgetting"  # in a checkpoint: new files that are being written


@dataclass(frozen=True)
class Choice:
    """Which pairs to delete; one of these is set."""

    match: str | None = None  # text that their source or target contains
    ids: Sequence[int] | None = None  # of examples in the memory
    # Name of a dataset, numbered if it repeats: all its pairs
    source: str | None = None


def forget(run: Path, choice: Choice, *, dry_run: bool = False) -> list[str]:
    """Delete pairs, or with ``dry_run`` only list them; return lines to print.

    Raises:
        FileNotFoundError: if the run has no memory.
        ValueError: if ``run`` is no run; if a memory is damaged, its texts are missing, or not one
            dataset has the name.
    """
    if (run / PROGRESS).exists():
        raise ValueError(
            f"{run} is one checkpoint; give the folder of its run, all of whose "
            "checkpoints lose a pair"
        )
    if (run / ABOUT).exists():
        raise ValueError(
            f"{run} is one memory; give the folder of its run or, of a copy, the folder in which it "
            f"is named {MEMORY}"
        )
    if not _folders(run):
        raise FileNotFoundError(
            f"{run} holds no memory; give the output_dir of a run with replay"
        )
    if dry_run:
        _, slots, ids = _find(run, choice)
        shown = slots.drop_duplicates("example", keep="last").sort_values("example")
        return [
            f"Would delete {counted(len(ids), 'pair')} from {run}:",
            *(f"{row.example:>8} {pair_line(row)}" for row in shown.itertuples()),
            *_not_found(run, choice, ids),
        ]
    with FolderLock(run, "run"):
        shutil.rmtree(run / SCRATCH, ignore_errors=True)  # of a run that was killed
        for folder in _folders(run):
            _put_in_place(folder)
        memories, _, ids = _find(run, choice)
        if ids:
            _log(run / DELETIONS, ids, choice)
            if (errors := run / EXAMPLE_ERRORS).is_file():
                visits = read_visits(errors)
                write_visits(errors, visits[~visits.example.isin(ids)])
            # Memories last, so that the repeated command still finds the pairs.
            for stored in memories:
                _rewrite(stored, ids)
    lines = [f"Deleted {counted(len(ids), 'pair')} from {run}"]
    if scored := len([*run.glob(f"evaluation/*/{PREDICTIONS}")]):
        lines.append(
            f"Not searched: {counted(scored, 'file')} of scored pairs, with their texts, "
            f"in {run / 'evaluation'}."
        )
    return [*lines, *_not_found(run, choice, ids), *_next_commands(run, choice)]


def _folders(run: Path) -> list[Path]:
    """Return the checkpoints of a run with a memory, or ``run`` if it is a copy of one."""
    marks = {*run.glob(f"{MEMORY}/{ABOUT}"), *run.glob(f"[!.]*/{MEMORY}/{ABOUT}")}
    folders = (path.parents[1] for path in marks)
    links_first = sorted(folders, key=Path.is_symlink, reverse=True)
    # Once each: `best` links to a checkpoint of the run, others may lie elsewhere.
    return sorted({folder.resolve(): folder for folder in links_first}.values())


def _find(
    run: Path, choice: Choice
) -> tuple[list[StoredMemory], pd.DataFrame, list[int]]:
    """Return the memories of a run, and the slots and the ids of the examples to delete.

    An example without a slot may still have logged visits.
    """
    memories = [open_memory(folder / MEMORY) for folder in _folders(run)]
    slots = pd.concat(map(read_slots, memories))
    visits = read_visits(run / EXAMPLE_ERRORS)
    examples = pd.concat([slots.example, visits.example]).drop_duplicates()
    if choice.match is not None:
        for stored in memories:
            if stored.texts is None and texts_of(stored) is None:
                raise ValueError(
                    f"--match: {stored.folder} has no texts, and there is no config "
                    "whose tokenizer could decode its tokens; use --ids or --source"
                )
        composed = unicodedata.normalize("NFC", choice.match)  # as most files have it
        is_in = [
            text.str.contains(choice.match, regex=False)
            | text.str.normalize("NFC").str.contains(composed, regex=False)
            for text in (slots.source, slots.target)
        ]
        chosen = slots.example[is_in[0] | is_in[1]]
    elif choice.source is not None:
        origins = examples.map(memories[-1].origin)
        _require_one(choice.source, memories, origins)
        chosen = examples[origins == choice.source]
    else:
        chosen = examples[examples.isin(choice.ids)]
    return memories, slots[slots.example.isin(chosen)], sorted(set(chosen))


def _require_one(
    source: str, memories: Sequence[StoredMemory], origins: pd.Series
) -> None:
    """Raise ValueError if ``source`` is not one dataset: none has this name, or several.

    Args:
        origins: the dataset of each example.
    """
    names = {
        origin: name
        for stored in memories
        for origin, name in zip(stored.origins, stored.about.origins, strict=True)
    }
    if source in names:
        return
    counts = [
        f"{origin} ({counted(int((origins == origin).sum()), 'pair')})"
        for origin, name in names.items()
        if name == source
    ]
    if counts:
        raise ValueError(
            f"--source {source} is ambiguous; give the number of one: {', '.join(counts)}"
        )
    raise ValueError(f"--source {source}: the datasets are {', '.join(names)}")


def _not_found(run: Path, choice: Choice, ids: list[int]) -> list[str]:
    """Return a line about what was looked for and is not in the run, if anything."""
    if choice.match is not None and not ids:
        return [
            f"No source or target in {run} contains the text of --match (upper and lower case "
            "differ)."
        ]
    if missing := {*(choice.ids or ())} - {*ids}:
        numbers = ", ".join(map(str, sorted(missing)))
        return [f"No pair in {run} has the number {numbers} (column example of --csv)."]
    return []


def _next_commands(run: Path, choice: Choice) -> list[str]:
    """Return the commands for the runs beside ``run`` whose memories start with one of its."""
    # Ids are numbers of one run. With "=", a text may begin with "-".
    option = f"--match={choice.match or 'TEXT'}"
    if choice.source is not None:
        option = f"--source={choice.source}"
    commands = []
    whole = Path(os.path.abspath(run))
    for config in sorted(whole.parent.glob(f"*/{CONFIG}")):
        if _starts_from(config, whole) and _folders(config.parent):
            command = ["erjepa", "memory", "forget", str(config.parent), option]
            commands.append(f"  {shlex.join(command)}")
    name = whole.name
    said = f"These runs started with a memory of {name}; if it was this one, delete there, too:"
    return [said, *commands] if commands else []


def _starts_from(config: Path, run: Path) -> bool:
    """Whether a run started with a memory of ``run``, as far as its config tells."""
    values: dict[str, Any] = {}
    with contextlib.suppress(ValueError, OSError):
        values = resolved(merged(str(config)))
    starts = (values.get("replay") or {}).get("init_from")
    starts = starts if isinstance(starts, list) else [starts] if starts else []
    output_dir, folder = values.get("output_dir", ""), config.parent.absolute()
    for start in starts:
        path = Path(os.path.abspath(moved_along(start, output_dir, folder)))
        if any(part.exists() and part.samefile(run) for part in (path, *path.parents)):
            return True
    return False


def _log(path: Path, ids: list[int], choice: Choice) -> None:
    by: dict[str, Any] = {"ids": choice.ids}
    if choice.match is not None:
        by = {"match_sha256": hashlib.sha256(choice.match.encode()).hexdigest()}
    elif choice.source is not None:
        by = {"source": choice.source}
    when = datetime.now().astimezone().isoformat(" ", "seconds")
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    row = {"when": when, "pairs": len(ids), "ids": ids, "by": by}
    write_whole(path, before + to_jsonl([row]))


def _rewrite(stored: StoredMemory, ids: list[int]) -> None:
    """Remove examples from a memory: write new files aside, then move them in place."""
    stored_ids = stored.tensors["example_ids"]
    kept = (~torch.isin(stored_ids, torch.tensor(ids))).nonzero().flatten()
    if len(kept) == len(stored):
        return
    checkpoint = stored.folder.parent
    aside = checkpoint / _ASIDE
    (aside / MEMORY).mkdir(parents=True)
    stored.write_part(aside / MEMORY, kept)
    if stored.has_manifest:
        new = {f"{MEMORY}/{path.name}": path for path in (aside / MEMORY).iterdir()}
        (aside / MANIFEST).write_text(relisted(checkpoint, new))
    for path in _files(aside):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    os.rename(aside, checkpoint / PENDING)
    _put_in_place(checkpoint)


def _put_in_place(checkpoint: Path) -> None:
    """Move the complete new files in place, including those that a killed process left."""
    ready = checkpoint / PENDING
    for path in _files(ready):
        os.replace(path, checkpoint / path.relative_to(ready))
    for left in (ready, checkpoint / _ASIDE):
        shutil.rmtree(left, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
