"""The worker process that runs generated SQL, started by :mod:`erjepa.tasks.spider.sql_sandbox`.

It runs as a script with the standard library only, and reads and writes lines of JSON:

    arguments  {"seconds": ..., "rows": ..., "size": ..., ...}     (Limits)
    output     "ready"
    input      ["file:///.../name.sqlite?mode=ro&immutable=1", "SELECT ..."]
    output     {"rows": [[1, "a", null, {"blob": "ff"}], ...]}  or  {"error": "..."}
"""

import contextlib
import json
import signal
import sqlite3
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
# Functions of some builds of SQLite that access files, code or the error log.
DENIED_FUNCTIONS = {
    "edit",
    "fsdir",
    "fts3_tokenizer",
    "fts5",
    "icu_load_collation",
    "load_extension",
    "lsmode",
    "readfile",
    "sqlite_log",
    "writefile",
}
# Limits that hand-written queries do not reach, against queries that exhaust resources.
SQLITE_LIMITS = {
    "ATTACHED": 0,
    "COMPOUND_SELECT": 50,
    "EXPR_DEPTH": 200,
    "LIKE_PATTERN_LENGTH": 1000,
    "TRIGGER_DEPTH": 0,
    "VDBE_OP": 100_000,
    "WORKER_THREADS": 0,
}
STEPS_BETWEEN_CLOCKS = 1000
# Time between the limit of a query and the end of a worker that it holds in a C function.
GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class Limits:
    """Limits on a query."""

    seconds: float = 10.0  # wall-clock time
    rows: int = 250_000  # rows of the result
    size: int = 16 * 2**20  # bytes of the result as JSON
    value_length: int = 4 * 2**20  # bytes of one text, blob or row within SQLite
    sql_length: int = 100_000  # bytes of SQL
    memory: int = 2**29  # bytes of address space; half of it limits SQLite's heap


class LimitReached(Exception):
    """Raised if a query exceeds a limit; the message names it."""


def limit_process(memory: int) -> None:
    """Limit memory, files and processes of this process, as far as the platform supports it."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    for name, value in (
        ("RLIMIT_AS", memory),
        ("RLIMIT_FSIZE", 0),  # no file grows
        ("RLIMIT_CORE", 0),  # a killed worker leaves no core file
        ("RLIMIT_NPROC", 0),  # no process is started
    ):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            if hard != resource.RLIM_INFINITY:
                value = min(value, hard)
            resource.setrlimit(kind, (value, value))


def authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """Allow reads and deny everything else, as SQLite's authorizer."""
    if action not in READS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in DENIED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def open_database(uri: str, limits: Limits) -> sqlite3.Connection:
    """Open a connection that can only read this file and interrupts queries at the time limit."""
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    # Some databases of Spider hold text that is not UTF-8.
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    # The authorizer denies PRAGMA, so these come first.
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA query_only=ON")
    connection.execute(f"PRAGMA hard_heap_limit={limits.memory // 2}").fetchall()
    if hasattr(connection, "setlimit"):
        for name, value in (
            *SQLITE_LIMITS.items(),
            ("LENGTH", limits.value_length),
            ("SQL_LENGTH", limits.sql_length),
        ):
            connection.setlimit(getattr(sqlite3, f"SQLITE_LIMIT_{name}"), value)
    connection.set_authorizer(authorize)
    deadline = time.monotonic() + limits.seconds
    connection.set_progress_handler(
        lambda: time.monotonic() > deadline, STEPS_BETWEEN_CLOCKS
    )
    return connection


def encode(rows: Iterable[tuple], limits: Limits) -> str:
    """Return rows as JSON; raise LimitReached if they are too many or too large."""
    parts, size = [], 0
    for row in rows:
        parts.append(
            json.dumps(
                row, default=lambda blob: {"blob": blob.hex()}, separators=(",", ":")
            )
        )
        size += len(parts[-1])
        if len(parts) > limits.rows:
            raise LimitReached(f"more than {limits.rows} rows")
        if size > limits.size:
            raise LimitReached(f"more than {limits.size} bytes of rows")
    return '{"rows":[' + ",".join(parts) + "]}"


def answer(uri: str, sql: str, limits: Limits) -> str:
    """Run one statement and return its rows, or its error, as JSON."""
    try:
        with contextlib.closing(open_database(uri, limits)) as connection:
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise LimitReached("no statement that returns rows")
            return encode(cursor, limits)
    except Exception as error:  # any error counts as the query's
        message = f"{type(error).__name__}: {error}"
        if str(error) == "interrupted":
            message = f"time limit of {limits.seconds} s"
        return json.dumps({"error": message})


def set_alarm(seconds: float) -> None:
    """End this process after ``seconds``, even inside a C function; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the caller may ignore it
        signal.setitimer(signal.ITIMER_REAL, seconds)


def main() -> None:
    """Answer queries until the input ends."""
    limits = Limits(**json.loads(sys.argv[1]))
    limit_process(limits.memory)
    print("ready", flush=True)
    for line in sys.stdin:
        set_alarm(limits.seconds + GRACE_SECONDS)
        uri, sql = json.loads(line)
        print(answer(uri, sql, limits), flush=True)
        set_alarm(0)


if __name__ == "__main__":
    main()
