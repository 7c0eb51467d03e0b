"""Runs untrusted SQL in a worker process that can only read, with limits on time and memory.

A query is sent to the worker over a pipe, which answers with rows or an error as JSON:

    this process                          worker process (sql_worker.py)
    ------------                          ------------------------------
    execute(db, sql) --- db, sql ---->    new read-only connection, authorizer, limits
                     <-- rows, error -    one statement, rows counted as they come
    start another if it died              clock: interrupt; alarm: die

Covered:

- Writing: the database is opened with ``mode=ro&immutable=1``, so SQLite creates no journal,
  lock or WAL file. An authorizer allows SELECT, column reads, recursion and functions,
  and nothing else: no ATTACH, PRAGMA, VACUUM, transaction, DDL, DML, temporary
  table or table-valued function, and no function that accesses files or loads code.
  Sorting uses memory only. The worker cannot write to files (RLIMIT_FSIZE).
- Shells: none is used, nor is the ``sqlite3`` program with its dot-commands. The worker cannot
  start processes, unless it runs as root (RLIMIT_NPROC).
- Time: a progress handler in SQLite interrupts queries; an alarm ends a worker that is still in a
  long C function a second later, whether or not its parent lives.
- Memory: SQLite's own heap limit, RLIMIT_AS on the process (Linux), and limits on the
  length of SQL and of values, on nesting, on rows, and on the size of a whole result.
- Crashes: if the worker dies, its query gets an error and a new worker is started.
- Secrets: the worker starts without the caller's environment.
- Answers: JSON, never pickle, of limited length.

Not covered:

- Vulnerabilities of SQLite or Python: the worker has the user's rights, with no seccomp,
  container or separate user. For anything beyond scoring a benchmark use one of those.
- Database files made to attack SQLite: the files are trusted, the SQL is not.
- Reading: a query can read its whole database, including ``sqlite_master``.
- Python 3.10, whose ``sqlite3`` has no ``setlimit``: SQLite's built-in limits apply (values
  up to 1 GB, stopped by the memory limits; ATTACH is still denied).
- Systems without ``resource`` (Windows): no process limits, no alarm.
- Load: time is wall-clock time, so a slow query can fail on a busy machine only.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from erjepa.tasks.spider.sql_worker import Limits

# Environment variables that an interpreter may need to start.
_LOADING = ("LD_LIBRARY_PATH", "SYSTEMROOT")


@dataclass(frozen=True)
class Result:
    """The rows of a query, or its error."""

    # Of None, int, float, str and bytes. Text that is not UTF-8 has surrogate escapes.
    rows: list[tuple] | None = None
    error: str | None = None  # of SQLite, or the limit that the query exceeded


class SqlSandbox:
    """A worker process that runs untrusted SQL; a context manager, for one thread.

    Examples:
        >>> with SqlSandbox() as sandbox:
        ...     sandbox.execute("shop.sqlite", "SELECT 1, 'a'").rows
        [(1, 'a')]
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "SqlSandbox":
        self._start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop()

    @property
    def pid(self) -> int | None:
        """The process id of the worker; ``None`` if it is dead."""
        process = self._process
        return process.pid if process and process.poll() is None else None

    def execute(self, db_path: str | Path, sql: str) -> Result:
        """Run one statement on one database file; errors of the SQL are in the result.

        Raises:
            RuntimeError: if no worker can be started.
        """
        if len(sql) > self._limits.sql_length:
            return Result(error=f"more than {self._limits.sql_length} bytes of SQL")
        if self.pid is None:  # it died in a query, or was killed between two
            self._stop()
            self._start()
        uri = f"{Path(db_path).absolute().as_uri()}?mode=ro&immutable=1"
        try:
            answer = self._ask(json.dumps([uri, sql]).encode() + b"\n")
        except BaseException:
            self._stop()  # a late answer must not be taken for that of the next query
            raise
        if not answer.endswith(b"\n"):
            is_late = self._stop() == -getattr(signal, "SIGALRM", 0)
            limit = f"time limit of {self._limits.seconds} s, killed"
            return Result(error=limit if is_late else "the worker died")
        answer = json.loads(answer, object_hook=_blob)
        if "rows" in answer:
            return Result(rows=[tuple(row) for row in answer["rows"]])
        return Result(error=answer["error"])

    def _start(self) -> None:
        # An isolated interpreter: importing site-packages and the caller's modules would take
        # seconds and address space.
        script = Path(__file__).with_name("sql_worker.py").absolute()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), json.dumps(asdict(self._limits))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Without the caller's variables, which may hold secrets.
            env={name: os.environ[name] for name in _LOADING if name in os.environ},
            cwd=os.path.abspath(os.sep),
        )
        _, answers = self._pipes()
        if answers.readline().strip() != b"ready":
            self._stop()
            raise RuntimeError(f"{sys.executable} {script} does not start")

    def _stop(self) -> int | None:
        """Kill the worker; return its exit code, that of its own death if it was dead."""
        process, self._process = self._process, None
        if process is None:
            return None
        # Closing the pipes flushes unread input, which fails for a dead process.
        with contextlib.suppress(OSError), process:
            process.kill()
        return process.wait()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        process = self._process
        assert process is not None and process.stdin and process.stdout
        return process.stdin, process.stdout

    def _ask(self, question: bytes) -> bytes:
        try:
            questions, answers = self._pipes()
            questions.write(question)
            questions.flush()
            # Room for the commas between rows, or for an error that quotes the SQL.
            room = self._limits.rows + 8 * self._limits.sql_length
            return answers.readline(self._limits.size + room)
        except OSError:  # it died while reading
            return b""


def _blob(fields: dict[str, Any]) -> Any:
    return bytes.fromhex(fields["blob"]) if "blob" in fields else fields
