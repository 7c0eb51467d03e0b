"""The contents of a run's memory, and statistics of the logged errors of its examples."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS, Visit, read_visits
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.commands.memory.reading import Slot, read_slots

# An example counts as learned if the mean cross-entropy of its target is below log 2: the right
# tokens then have, in the geometric mean, a probability above one half.
LEARNED = math.log(2)
DEVIATIONS = (
    3.0  # robust standard deviations above the median that make an error suspect
)
VISITS = 4  # an example with fewer may be hard only because it is new
_MAD = 1.4826  # normal distribution: standard deviation / median absolute deviation


@dataclass
class Trajectory:
    """The visits of one example, in order."""

    steps: list[int] = field(default_factory=list)
    errors: list[float] = field(
        default_factory=list
    )  # cross-entropy per token, in nats
    replays: int = 0  # visits that were replays

    @property
    def learned(self) -> bool:
        """Whether the example was learned at its last visit."""
        return self.errors[-1] < LEARNED

    @property
    def forgetting_events(self) -> int:
        """How often it was learned at one visit but not at the next (Toneva et al., "An
        Empirical Study of Example Forgetting during Deep Neural Network Learning", 2019).
        """
        known = [error < LEARNED for error in self.errors]
        return sum(a and not b for a, b in zip(known, known[1:], strict=False))

    @property
    def late_error(self) -> float:
        """Mean error over the later half of its visits."""
        late = self.errors[len(self.errors) // 2 :]
        return sum(late) / len(late)


def trajectories(visits: Iterable[Visit]) -> dict[int, Trajectory]:
    """Return the trajectory of each example, by its id."""
    found: dict[int, Trajectory] = {}
    for visit in visits:
        trajectory = found.setdefault(visit.example, Trajectory())
        trajectory.steps.append(visit.step)
        trajectory.errors.append(visit.lm_loss)
        trajectory.replays += visit.replayed
    return found


def stay_hard(found: Mapping[int, Trajectory]) -> set[int]:
    """Return the examples with at least ``VISITS`` visits that are not learned and whose late
    error is more than ``DEVIATIONS`` robust standard deviations above the median.
    """
    late = {
        example: t.late_error for example, t in found.items() if len(t.errors) >= VISITS
    }
    if not late:
        return set()
    middle = median(late.values())
    spread = _MAD * median(abs(error - middle) for error in late.values())
    limit = max(middle + DEVIATIONS * spread, LEARNED)
    return {
        example
        for example, error in late.items()
        if error > limit and not found[example].learned
    }


def flag(
    slots: Sequence[Slot], prompts: Sequence[bytes], found: Mapping[int, Trajectory]
) -> None:
    """Add the reasons why a slot is suspect to its ``flags``.

    ``prompts`` holds the tokens of each source, system message included; ``found`` the
    trajectories of logged examples.
    """
    hard = stay_hard(found)
    # Prompt -> target -> the first slot with both.
    answers: dict[bytes, dict[str, int]] = defaultdict(dict)
    for slot, prompt in zip(slots, prompts, strict=True):
        answers[prompt].setdefault(slot.target, slot.slot)
    for slot, prompt in zip(slots, prompts, strict=True):
        if slot.example in hard:
            slot.flags.append("stays hard")
        others = (at for target, at in answers[prompt].items() if target != slot.target)
        if (other := next(others, None)) is not None:
            slot.flags.append(f"slot {other} has the same source and another target")


@dataclass
class Contents:
    """The memory of a run, and the logged errors of its examples."""

    stored: StoredMemory
    slots: list[Slot]  # flagged
    visits: list[Visit]  # empty without ``log_example_errors``
    found: dict[int, Trajectory]  # by example


def read_contents(path: Path) -> Contents:
    """Read the memory of a run or checkpoint, and flag suspect slots.

    Raises:
        FileNotFoundError: if there is no memory.
        ValueError: if it is damaged.
    """
    stored = open_memory(path)
    slots = read_slots(stored)
    run = stored.folder.resolve().parents[1]
    visits = list(read_visits(run / EXAMPLE_ERRORS))
    found = trajectories(visits)
    flag(slots, [pair.source.tobytes() for pair in stored.pairs], found)
    return Contents(stored, slots, visits, found)
