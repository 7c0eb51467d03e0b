"""Attacks with answers that try to hang, crash or break out of a scorer."""

import random
import time
from pathlib import Path
from typing import Any

from erjepa.tasks.score import load_task
from tests.campaign.attack import UNHARMED, Attack, Lost, Try
from tests.harness.databases import ENDLESS, snapshot, write_shop

_AT_ONCE = 50
_MOST_SECONDS = (
    60.0  # of so many answers at once, on a machine that does other work as well
)
_REGEXES = [
    *(".*[AEIOUaeiou].*", "((dog)|(truck)){2,}", "([0-9])+", "~(.*a.*)&(.{4,})"),
    *(r"\b[a-z]{3}\b", "(a*)*b", "(.*){9}", "[^a-c]?x", "((a|aa)+)+$"),
]
_SQL = [
    "SELECT name FROM clerk WHERE age > 22 ORDER BY id",
    "SELECT count(*) FROM shop JOIN clerk ON clerk.id = shop.clerk_id",
    ENDLESS.format("x"),
    "ATTACH DATABASE 'x.db' AS x",
    "PRAGMA writable_schema = 1",
    "DROP TABLE clerk",
    "SELECT zeroblob(1000000000)",
    "SELECT load_extension('x')",
    "INSERT INTO clerk VALUES (1000, 'x', 1)",
    "VACUUM INTO 'x.db'",
]
TEXTS = [
    "The answer is #### 42",
    "#### 1,000",
    "Paris",
    "the  Eiffel-Tower!",
    "[1, 2]",
]
HOSTILE = "(){}[]|*+?\\&~^$.,;'\"-%\n\t\0\ud800\u202eÿ9aB" + "("


def mutate(rng: random.Random, text: str, others: list[str]) -> str:
    """Return a text with hostile changes and parts of other texts."""
    for _ in range(rng.randint(1, 6)):
        at, to = sorted(rng.randint(0, len(text)) for _ in range(2))
        way = rng.randrange(6)
        if way == 0:
            text = text[:at] + rng.choice(HOSTILE) + text[at:]
        elif way == 1:
            text = text[:at] + text[to:]
        elif way == 2:
            text = text[:at] + text[at:to] * rng.choice([2, 3, 50]) + text[to:]
        elif way == 3:
            text = text[:at] + rng.choice(others) + text[at:]
        elif way == 4:
            text = "(" * rng.choice([1, 40]) + text + ")" * rng.choice([1, 40])
        elif rng.random() < 0.1:
            text = text * rng.choice([10, 1000])
    return text[:200_000]


def _answers(name: str, texts: list[str], folder: Path, **more: Any) -> Try:
    task = load_task(name, more.pop("databases", None))
    watched = more.pop("watched", None)

    def attempt(rng: random.Random, scratch: Path) -> str:
        targets = [rng.choice(texts) for _ in range(_AT_ONCE)]
        predictions = [
            {"target": t, "output": mutate(rng, rng.choice(texts), texts), **more}
            for t in targets
        ]
        before = snapshot(watched) if watched else None
        start = time.monotonic()
        verdicts = task.score(predictions)
        seconds = time.monotonic() - start
        if seconds > _MOST_SECONDS:
            raise Lost(f"{_AT_ONCE} answers took {seconds:.0f} s")
        for prediction, verdict in zip(predictions, verdicts, strict=True):
            if verdict.keys() != verdicts[0].keys() or not all(
                v in (True, False, None) for v in verdict.values()
            ):
                raise Lost(f"{prediction['output']!r}: no verdict: {verdict}")
            task.extract(prediction["output"])
        if before is not None and snapshot(watched) != before:
            raise Lost("a file was changed or made")
        return UNHARMED

    return attempt


def regexes(folder: Path) -> Try:
    return _answers("nl_rx", _REGEXES, folder)


def statements(folder: Path) -> Try:
    (folder / "dbs" / "shop").mkdir(parents=True)
    write_shop(folder / "dbs" / "shop" / "shop.sqlite")
    return _answers(
        "spider", _SQL, folder, databases=folder / "dbs", watched=folder, db_id="shop"
    )


def numbers(folder: Path) -> Try:
    texts = [text for text in TEXTS if "####" in text]
    return _answers("gsm8k", texts, folder)


def names(folder: Path) -> Try:
    return _answers("nq_open", TEXTS, folder)


ATTACKS = [
    Attack("regexes, fifty at once", 80, 2, regexes),
    Attack("SQL, fifty at once", 60, 3, statements),
    Attack("numbers, fifty at once", 40, 0.3, numbers),
    Attack("names, fifty at once", 40, 0.3, names),
]
