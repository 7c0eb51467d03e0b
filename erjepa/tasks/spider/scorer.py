"""Spider: questions about databases, and SQL queries that answer them.

Verdicts:

- ``execution``: query and reference query give the same rows, as in the ER-JEPA paper.
  A query that fails is wrong. Rows are compared as a multiset, or in order if the reference has an
  ORDER BY at its top level (the order of tied rows is then that of the reference's result).
  The order of columns counts, their names do not. Values are compared as in Python: numbers
  exactly, so 1 equals 1.0; text character by character; NULL equals NULL; values of different
  kinds among text, number, blob and NULL are never equal.
- ``exact_match``: the same text, apart from white space and one trailing semicolon.
- ``llm_jepa``: the result of LLM-JEPA's scorer, for comparison with its published numbers.

``execution`` and ``llm_jepa`` are undecided if the database is missing or the reference query
fails, as with a damaged database file. A warning gives the database and the number of such
predictions. Queries run in :class:`~erjepa.tasks.spider.sql_sandbox.SqlSandbox`.

Faults of LLM-JEPA's scorer, which passes the output to the ``sqlite3`` program, and whether
``llm_jepa`` reproduces them:

- A failed query prints nothing and so equals an empty result. Reproduced, except if the reference
  fails, when every failed output would be right.
- It compares printed rows: always in order, NULL as an empty string, numbers like text, floats to
  15 digits, text up to its first NUL. Reproduced.
- An output that starts with ``-`` is an option of the program. Reproduced: it fails.
- Dot-commands can run a shell, functions can access files, and time is not limited. Not
  reproduced: queries that the sandbox refuses count as failed.
- The output runs first and can write, so DROP TABLE makes the reference fail too, and both are
  equal. Not reproduced: databases are read-only.
- Of several statements all print. Not reproduced: they count as failed.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import chain
from pathlib import Path

from erjepa.tasks.spider.sql_sandbox import Result, SqlSandbox
from erjepa.tasks.task import Prediction, Task, Verdicts
from erjepa.utils.escape import one_line

log = logging.getLogger(__name__)

_WORKERS = 2
_PART = 200  # predictions that a worker process judges
_LONGEST_ARGUMENT = 128 * 1024  # limit on an argument of a program on Linux

_FENCE = re.compile(r"```[^\n`]*\n((?:(?!```).)*)```", re.DOTALL)
_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]  # quoted
    | --[^\n]* | /\*.*?(?:\*/|\Z)                                      # comments
    | \w+ | [()]""",
    re.DOTALL | re.VERBOSE,
)


def extract(output: str) -> str:
    """Return the SQL: the whole text, without a Markdown code fence around it."""
    output = output.strip()
    fence = _FENCE.fullmatch(output)
    return fence[1].strip() if fence else output


def is_ordered(sql: str) -> bool:
    """Return whether a query has an ORDER BY outside of all parentheses."""
    depth, previous = 0, ""
    for token in _TOKEN.findall(sql):
        if token.startswith(("--", "/*")):
            continue
        depth += (token == "(") - (token == ")")
        token = token.upper()
        if depth == 0 and (previous, token) == ("ORDER", "BY"):
            return True
        previous = token
    return False


def same_rows(result: Result, gold: Result, *, ordered: bool) -> bool:
    """Return the verdict ``execution``."""
    if result.rows is None or gold.rows is None:
        return False
    if ordered:
        return result.rows == gold.rows
    return Counter(result.rows) == Counter(gold.rows)


def spider_task(databases: Path | None) -> Task:
    """Return the task for a folder of databases.

    Args:
        databases: folder with ``{db_id}/{db_id}.sqlite``. Without the folder, or a database in it,
            only ``exact_match`` is decided.

    Raises:
        FileNotFoundError: if there is no such folder.
    """
    if databases is not None and not databases.is_dir():
        raise FileNotFoundError(f"databases={databases}: no such folder")

    def score(predictions: Sequence[Prediction]) -> list[Verdicts]:
        starts = range(0, len(predictions), _PART)
        parts = [predictions[start : start + _PART] for start in starts]
        with ThreadPoolExecutor(_WORKERS) as threads:
            judged = [*chain(*threads.map(partial(_judge_part, databases), parts))]
        for why, count in Counter(why for _, why in judged if why).items():
            log.warning(
                f"{one_line(why, 500)}: {count} of {len(predictions)} predictions are undecided"
            )
        return [verdicts for verdicts, _ in judged]

    return Task(
        name="spider",
        primary="execution",
        extract=extract,
        score=score,
        fields=("target", "output", "db_id"),
        with_databases=spider_task,
    )


def _judge_part(
    databases: Path | None, predictions: Sequence[Prediction]
) -> list[tuple[Verdicts, str]]:
    """Return the verdicts on each prediction, and why it is undecided, or ""."""
    with SqlSandbox() as sandbox:
        gold_of = cache(sandbox.execute)

        def judge(prediction: Prediction) -> tuple[Verdicts, str]:
            output, target = extract(prediction["output"]), prediction["target"]
            verdicts: Verdicts = {
                "execution": None,
                "exact_match": _canonical(output) == _canonical(target),
                "llm_jepa": None,
            }
            database = _find(databases, prediction["db_id"])
            if isinstance(database, str):
                return verdicts, database
            gold = gold_of(database, target)
            if gold.rows is None:
                return verdicts, f"{database}: a reference query fails ({gold.error})"
            result = sandbox.execute(database, output)
            verdicts["execution"] = same_rows(result, gold, ordered=is_ordered(target))
            verdicts["llm_jepa"] = _llm_jepa(prediction["output"], result, gold)
            return verdicts, ""

        return list(map(judge, predictions))


def _find(databases: Path | None, db_id: str) -> Path | str:
    """Return the path of a database, or the reason why it is missing."""
    if databases is None:
        return "databases, the folder of Spider's databases, is not set"
    # A path could lead out of the folder.
    if Path(db_id).name != db_id or db_id in ("", ".."):
        return f"db_id={db_id!r} is no name of a database"
    path = databases / db_id / f"{db_id}.sqlite"
    # Unlike Path.is_file, os.path.isfile does not raise for a name that is too long.
    return path if os.path.isfile(path) else f"{path} is absent"


def _canonical(sql: str) -> str:
    return " ".join(sql.split()).removesuffix(";").rstrip()


def _llm_jepa(output: str, result: Result, gold: Result) -> bool:
    # The script raises for outputs that cannot be an argument; they are wrong even if the
    # reference has no rows.
    if "\0" in output or len(output.encode(errors="replace")) >= _LONGEST_ARGUMENT:
        return False
    # The program gets the raw output, in which an option or a code fence is not a query.
    if output.startswith("-") or output.strip() != extract(output):
        result = Result(error="not a query")
    printed = _printed(result)
    if any("\udc80" <= character <= "\udcff" for character in printed):
        return False  # the script decodes the printed rows as UTF-8; an error counts as wrong
    return printed == _printed(gold)


def _printed(result: Result) -> str:
    """Return what the ``sqlite3`` program prints in list mode; "" for an error."""
    rows = result.rows or []
    return "".join("|".join(map(_printed_value, row)) + "\n" for row in rows)


def _printed_value(value: int | float | str | bytes | None) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return _printed_float(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    return str(value).partition("\0")[0]


def _printed_float(value: float) -> str:
    """Format a float as SQLite's ``%!.15g``: 15 digits, always with a decimal point."""
    if value in (float("inf"), float("-inf")):
        return "Inf" if value > 0 else "-Inf"
    mantissa, exponent, power = f"{value + 0.0:.15g}".partition("e")
    return (mantissa if "." in mantissa else f"{mantissa}.0") + exponent + power


TASK = spider_task(None)
