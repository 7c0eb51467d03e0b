"""What an attack is, and the count of what came of it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

UNHARMED = "unharmed"  # the result is that of an unharmed run
REFUSED = "refused"  # one clear message


class Lost(Exception):
    """Something is lost, silently wrong, or said without a place."""


# One try: random choices and an empty folder in, UNHARMED or REFUSED out; raises Lost.
Try = Callable[[random.Random, Path], str]


@dataclass(frozen=True)
class Attack:
    """A kind of attack.

    Args:
        name (str): on the command line and in the table.
        aim (int): how many tries a whole campaign has.
        share (float): of the time, beside the other attacks.
        prepare (Callable[[Path], Try]): makes, in a folder that stays, what the tries need.
    """

    name: str
    aim: int
    share: float
    prepare: Callable[[Path], Try]


@dataclass
class Tally:
    """What came of the tries of one attack."""

    tried: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0


def rng_of(seed: int, attack: Attack, number: int) -> random.Random:
    """The random choices of one try."""
    return random.Random(f"{seed}/{attack.name}/{number}")
