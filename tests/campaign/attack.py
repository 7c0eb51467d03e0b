"""The interface of an attack, and the counts of its outcomes."""

import contextlib
import io
import random
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erjepa.utils.command_line import is_users

UNHARMED = "unharmed"  # the result is that of an unharmed run
REFUSED = "refused"  # one clear message


class Lost(Exception):
    """The outcome is lost: silently wrong, or an error without a place."""


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
    """The outcomes of the tries of one attack."""

    tried: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0


def rng_of(seed: int, attack: Attack, number: int) -> random.Random:
    """Return the random generator of one try."""
    return random.Random(f"{seed}/{attack.name}/{number}")


def refused(error: Exception, *places: Any) -> str:
    """REFUSED, if users read the error in one line that names one of the places.

    Raises:
        Lost: if they read a traceback, more lines, or no place.
    """
    if not is_users(error):
        trace = "".join(traceback.format_exception(error))
        raise Lost(f"a traceback: {trace}") from None
    return _in_one_line(str(error), places)


def called(
    main: Callable[[list[str]], Any], arguments: list[str], *places: Any
) -> tuple[str, str]:
    """Call a command: UNHARMED or REFUSED, and what it printed.

    Raises:
        Lost: if it fails, but not in one line that names one of the places.
    """
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            code = main(arguments)
        except SystemExit as end:
            if isinstance(end.code, int) and end.code > 128:
                raise  # a signal: the campaign itself is to end
            code = end.code
    if not code:
        return UNHARMED, printed.getvalue()
    text = said.getvalue().strip() or printed.getvalue().strip()
    return _in_one_line(text, places), text


def _in_one_line(text: str, places: tuple[Any, ...]) -> str:
    if len(text.splitlines()) != 1:
        raise Lost(f"not one line: {text[:2000]}")
    if not any(str(place) in text for place in places):
        raise Lost(f"said without the place: {text[:2000]}")
    return REFUSED


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise Lost if it takes longer."""

    def lose(number: int, frame: Any) -> None:
        raise Lost(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, lose)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
