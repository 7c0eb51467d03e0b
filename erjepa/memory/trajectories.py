"""What the logged errors of examples say: learned, forgotten, suspect."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from erjepa.checkpoints.example_errors import Visit
from erjepa.memory.reading import Slot

# An example is learned while the mean cross-entropy of its target's tokens is below log 2: then
# the right token has, in the geometric mean, more than half of the probability.
LEARNED = math.log(2)
DEVIATIONS = 3.0  # robust ones above the median: what stays that hard is suspect
# Two sources ask the same if their distance is this share of that to any source, or less: where
# embeddings have collapsed, all cosines are near 1.
TWINS = 0.05
_MAD = 1.4826  # of normal numbers: standard deviation over median absolute deviation


@dataclass
class Trajectory:
    """The visits of one example, in order.

    Args:
        steps (list[int]): of the run.
        errors (list[float]): cross-entropy a token, in nats.
        replays (int): how many of the visits were replays.
    """

    steps: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    replays: int = 0

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
    """The examples that were visited again and are not learned, and whose error stays above
    that of the others by ``DEVIATIONS`` robust standard deviations.
    """
    late = {example: t.late_error for example, t in found.items() if len(t.errors) > 1}
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
    slots: Sequence[Slot],
    found: Mapping[int, Trajectory],
    nearest: Sequence[int],
    distances: Sequence[float],
) -> None:
    """Say of each slot why it is suspect, if it is.

    Of two slots that ask the same and answer otherwise, both are suspect; where their errors
    were logged, the one that is not learned while the other is.

    Args:
        slots (Sequence[Slot]): whose ``flags`` are filled.
        found (Mapping[int, Trajectory]): of the examples, as far as they were logged.
        nearest (Sequence[int]): the slot whose source is most like that of each.
        distances (Sequence[float]): how far it is, as a share of the mean over all slots.
    """
    hard = stay_hard(found)
    for slot, other, distance in zip(slots, nearest, distances, strict=True):
        if slot.example in hard:
            slot.flags.append("stays hard")
        twin = slots[other]
        if distance > TWINS or twin.target == slot.target:
            continue
        own, its = found.get(slot.example), found.get(twin.example)
        if own is None or its is None or (its.learned and not own.learned):
            slot.flags.append(f"slot {other} asks the same, and answers otherwise")
