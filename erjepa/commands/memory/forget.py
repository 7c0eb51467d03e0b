"""Delete pairs from every memory of a run; see ``erjepa memory forget --help``."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from erjepa.checkpoints.checkpoint import MEMORY, PROGRESS, SCRATCH
from erjepa.checkpoints.example_errors import (
    EXAMPLE_ERRORS,
    keep_visits,
    read_visits,
)
from erjepa.checkpoints.lock import FolderLock
from erjepa.checkpoints.manifest import FORGOTTEN as _READY
from erjepa.checkpoints.manifest import MANIFEST, relisted
from erjepa.checkpoints.memory_file import ABOUT
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.commands.memory.reading import Slot, decoder_of, read_slots
from erjepa.utils.escape import counted, one_line
from erjepa.utils.files import write_whole
from erjepa.utils.jsonl import to_jsonl

FORGOTTEN = "forgotten.jsonl"  # in the output folder
_ASIDE = ".forgetting"  # in a checkpoint: new files that are being written


@dataclass(frozen=True)
class Choice:
    """Which pairs to delete; one of these is set."""

    match: str | None = None  # text that their source or target contains
    ids: Sequence[int] | None = None  # of examples in the memory
    source: str | None = None  # name of a dataset: all its pairs


def forget(run: Path, choice: Choice, *, dry_run: bool = False) -> list[str]:
    """Delete pairs, or with ``dry_run`` only list them; return lines to print.

    Raises:
        FileNotFoundError: if the run has no memory.
        ValueError: if a memory is damaged, its texts are missing, or no dataset has the name.
    """
    if (run / PROGRESS).exists():
        raise ValueError(
            f"{run} is one checkpoint; give the folder of its run, all of whose "
            "checkpoints lose a pair"
        )
    if not _folders(run):
        raise FileNotFoundError(
            f"{run} holds no memory; give the output_dir of a run with replay"
        )
    if dry_run:
        found = _Found(run, choice)
        return [
            f"Would delete {counted(len(found.examples), 'pair')} from {run}:",
            *(
                f"{example:>8} {one_line(slot.where)}: {one_line(slot.source, 60)} -> "
                f"{one_line(slot.target, 60)}"
                for example, slot in sorted(found.slots.items())
            ),
        ]
    lock = FolderLock(run, "run")
    try:
        shutil.rmtree(run / SCRATCH, ignore_errors=True)  # of a run that was killed
        for folder in _folders(run):
            _put_in_place(folder)
        found = _Found(run, choice)
        if found.examples:
            _log(run / FORGOTTEN, found.examples, choice)
            found.delete()
    finally:
        lock.release()
    return [f"Deleted {counted(len(found.examples), 'pair')} from {run}."]


def _folders(run: Path) -> list[Path]:
    """Return the checkpoints of a run with a memory, or ``run`` if it is a copy of one."""
    found = {*run.glob(f"{MEMORY}/{ABOUT}"), *run.glob(f"[!.]*/{MEMORY}/{ABOUT}")}
    folders = sorted(path.parents[1] for path in found)
    return [folder for folder in folders if folder == run or not folder.is_symlink()]


class _Found:
    """The pairs to delete: ``slots`` maps example ids to a slot each; ``examples`` also has
    the ids of pairs with logged visits but no slot.
    """

    def __init__(self, run: Path, choice: Choice) -> None:
        self._errors = run / EXAMPLE_ERRORS
        self._memories = [open_memory(folder / MEMORY) for folder in _folders(run)]
        is_chosen = _chosen(choice, self._memories)
        self._slots = [read_slots(stored) for stored in self._memories]
        self.slots = {
            slot.example: slot
            for slots in self._slots
            for slot in slots
            if is_chosen(slot.example, slot)
        }
        visited = {visit.example for visit in read_visits(self._errors)}
        self.examples = {*self.slots, *(i for i in visited if is_chosen(i, None))}

    def delete(self) -> None:
        """Delete the pairs, from memories last, so that a repeated command still finds them."""
        if self._errors.is_file():
            keep_visits(self._errors, lambda visit: visit.example not in self.examples)
        for stored, slots in zip(self._memories, self._slots, strict=True):
            kept = [slot.slot for slot in slots if slot.example not in self.examples]
            if len(kept) < len(slots):
                _rewrite(stored, kept)


def _chosen(
    choice: Choice, memories: list[StoredMemory]
) -> Callable[[int, Slot | None], bool]:
    """Return the condition on an example id and its slot, ``None`` if it has only visits."""
    if (text := choice.match) is not None:
        for stored in memories:
            if stored.texts is None and decoder_of(stored) is None:
                raise ValueError(
                    f"--match: {stored.folder} has no texts, and there is no config "
                    "whose tokenizer could decode its tokens; use --ids or --source"
                )
        return lambda _, slot: (
            slot is not None and (text in slot.source or text in slot.target)
        )
    if choice.source is not None:
        names = dict.fromkeys(name for m in memories for name in m.about.origins)
        if choice.source not in names:
            raise ValueError(
                f"--source {choice.source}: the datasets are {', '.join(names)}"
            )
        return lambda example, _: memories[-1].origin(example) == choice.source
    return lambda example, _: example in (choice.ids or ())


def _log(path: Path, examples: Iterable[int], choice: Choice) -> None:
    by: dict[str, Any] = {"ids": choice.ids}
    if choice.match is not None:
        by = {"match_sha256": hashlib.sha256(choice.match.encode()).hexdigest()}
    elif choice.source is not None:
        by = {"source": choice.source}
    ids = sorted(examples)
    when = datetime.now().astimezone().isoformat(" ", "seconds")
    before = path.read_text() if path.exists() else ""
    row = {"when": when, "pairs": len(ids), "ids": ids, "by": by}
    write_whole(path, before + to_jsonl([row]))


def _rewrite(stored: StoredMemory, kept: list[int]) -> None:
    """Reduce a memory to the slots ``kept``: write new files aside, then move them in place."""
    checkpoint = stored.folder.parent
    aside = checkpoint / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    (aside / MEMORY).mkdir(parents=True)
    stored.write_part(aside / MEMORY, torch.tensor(kept, dtype=torch.int64))
    if stored.has_manifest:
        new = {f"{MEMORY}/{path.name}": path for path in (aside / MEMORY).iterdir()}
        (aside / MANIFEST).write_text(relisted(checkpoint, new))
    for path in _files(aside):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    os.rename(aside, checkpoint / _READY)
    _put_in_place(checkpoint)


def _put_in_place(checkpoint: Path) -> None:
    """Move the complete new files in place, including those that a killed process left."""
    ready = checkpoint / _READY
    for path in _files(ready):
        os.replace(path, checkpoint / path.relative_to(ready))
    for left in (ready, checkpoint / _ASIDE):
        shutil.rmtree(left, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
