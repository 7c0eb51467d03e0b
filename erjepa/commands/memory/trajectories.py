"""The contents of a run's memory, and what the logged errors say of its examples."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS, Visit, read_visits
from erjepa.checkpoints.stored_memory import StoredMemory, open_memory
from erjepa.commands.memory.reading import Slot, read_slots

# An example is learned while the mean cross-entropy of its target's tokens is below log 2: then
# the right token has, in the geometric mean, more than half of the probability.
LEARNED = math.log(2)
DEVIATIONS = 3.0  # robust ones above the median: what stays that hard is suspect
VISITS = 4  # with fewer, what is hard may only be new
_MAD = 1.4826  # of normal numbers: standard deviation over median absolute deviation


@dataclass
class Trajectory:
    """The visits of one example, in order."""

    steps: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)  # cross-entropy a token, in nats
    replays: int = 0  # visits that were replays

    @property
    def learned(self) -> bool:
        """Whether it was so at its last visit."""
        return self.errors[-1] < LEARNED

    @property
    def forgetting_events(self) -> int:
        """How many times it was learned at one visit and not at the next (Toneva et al., "An
        Empirical Study of Example Forgetting during Deep Neural Network Learning", 2019).
        """
        known = [error < LEARNED for error in self.errors]
        return sum(a and not b for a, b in zip(known, known[1:], strict=False))

    @property
    def late_error(self) -> float:
        """Mean error of the later half of its visits."""
        late = self.errors[len(self.errors) // 2 :]
        return sum(late) / len(late)


def trajectories(visits: Iterable[Visit]) -> dict[int, Trajectory]:
    """The trajectory of each example, by its id."""
    found: dict[int, Trajectory] = {}
    for visit in visits:
        trajectory = found.setdefault(visit.example, Trajectory())
        trajectory.steps.append(visit.step)
        trajectory.errors.append(visit.lm_loss)
        trajectory.replays += visit.replayed
    return found


def stay_hard(found: Mapping[int, Trajectory]) -> set[int]:
    """The examples that are not learned after ``VISITS`` visits or more, and whose error stays
    above that of the others by ``DEVIATIONS`` robust standard deviations.
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
    """Say of each slot why it is suspect, if it is.

    ``prompts`` has the tokens of each source, system message included; ``found`` the examples
    that were logged.
    """
    hard = stay_hard(found)
    # Of each prompt one slot for each of its answers.
    answers: dict[bytes, dict[str, int]] = defaultdict(dict)
    for slot, prompt in zip(slots, prompts, strict=True):
        answers[prompt].setdefault(slot.target, slot.slot)
    for slot, prompt in zip(slots, prompts, strict=True):
        if slot.example in hard:
            slot.flags.append("stays hard")
        others = (at for target, at in answers[prompt].items() if target != slot.target)
        if (other := next(others, None)) is not None:
            slot.flags.append(f"slot {other} asks the same, and answers otherwise")


@dataclass
class Contents:
    """What there is to read of a run's memory."""

    stored: StoredMemory
    slots: list[Slot]  # flagged
    visits: list[Visit]  # none without ``log_example_errors``
    found: dict[int, Trajectory]  # by example


def read_contents(path: Path) -> Contents:
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
    return Contents(stored, slots, visits, found)
