"""All that there is to read of a run's memory: slots, trajectories, suspects."""

from dataclasses import dataclass
from pathlib import Path

from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS, Visit, read_visits
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.commands.memory.reading import Slot, read_slots
from erjepa.commands.memory.trajectories import Trajectory, flag, trajectories


@dataclass
class Reading:
    """A memory, read."""

    stored: StoredMemory
    slots: list[Slot]  # flagged
    visits: list[Visit]  # none without ``log_example_errors``
    found: dict[int, Trajectory]  # by example


def read_suspects(path: Path) -> Reading:
    """Read the memory of a run or checkpoint, and flag what is suspect.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is not whole.
    """
    stored = open_memory(path)
    slots = read_slots(stored)
    run = stored.folder.resolve().parents[1]
    visits = list(read_visits(run / EXAMPLE_ERRORS))
    found = trajectories(visits)
    flag(slots, [pair.source.tobytes() for pair in stored.pairs], found)
    return Reading(stored, slots, visits, found)
