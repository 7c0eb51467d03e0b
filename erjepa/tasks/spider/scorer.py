"""Spider: questions about databases and the SQL that answers them.

Yu et al. 2018, "Spider: A Large-Scale Human-Labeled Dataset for Complex and Cross-Domain
Semantic Parsing and Text-to-SQL Task".

Verdicts:

- ``execution``: query and reference query give the same rows, as in the ER-JEPA paper.
  A query that fails is wrong. Rows are compared as a
  bag, and in order if the reference has an ORDER BY at its top level (rows that it leaves
  tied then count in the order of its own result). Columns count in order, their names do
  not. Values are equal as in Python: 1 and 1.0 are, exactly and without a tolerance; text
  is compared character by character; text, numbers, blobs and NULL never equal each other;
  NULL equals NULL.
- ``exact_match``: the same text but for white space and one trailing semicolon.
- ``llm_jepa``: as LLM-JEPA's scorer has it, to compare with its numbers.

``execution`` and ``llm_jepa`` are undecided without the database, and where the reference
query fails: a file that is no database, or half of one, says nothing about an answer. A warning
names the database and how many predictions that is. Queries run in
:class:`~erjepa.tasks.spider.sql_sandbox.SqlSandbox`.

Faults of LLM-JEPA's split: it is random, so every database of its test file occurs in its
training file, and 1041 of the 1447 test queries occur there verbatim. See
:func:`~erjepa.tasks.summary.seen_in`, and ``split_by="database"`` of
:func:`~erjepa.tasks.spider.dataset.spider_dataset`.

Faults of LLM-JEPA's scorer, which hands the output to the ``sqlite3`` program:

- A failed query prints nothing and so equals an empty result. Kept in its verdict, but
  where the reference fails: every failed output would be right.
- Printed rows are compared: in order whatever the reference asks for, NULL as an empty
  text, numbers and text alike, floats to 15 digits, text up to its first NUL. Kept.
- An output that starts with ``-`` is an option of the program. Kept: it fails.
- Dot-commands reach a shell, functions reach files, and nothing limits time. Not kept:
  what the sandbox refuses counts as failed.
- The output runs first and may write, so that DROP TABLE makes the reference fail too,
  and both equal. Not kept: nothing is written.
- Several statements all print. Not kept: they count as failed.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from erjepa.tasks.spider.sql_sandbox import Limits, Result, SqlSandbox
from erjepa.tasks.task import Prediction, Task, Verdicts
from erjepa.utils.escape import one_line

log = logging.getLogger(__name__)

# Predictions whose results are in memory at once; each is up to Limits.size.
_AT_ONCE = 16
_LONGEST_ARGUMENT = 128 * 1024  # of a program, on Linux

_FENCE = re.compile(r"```[^\n`]*\n((?:(?!```).)*)```", re.DOTALL)
_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]  # quoted
    | --[^\n]* | /\*.*?(?:\*/|\Z)                                      # comments
    | \w+ | [()]""",
    re.DOTALL | re.VERBOSE,
)


def extract(output: str) -> str:
    """The SQL: the whole text, out of its Markdown code fence if the whole is in one."""
    output = output.strip()
    fence = _FENCE.fullmatch(output)
    return fence[1].strip() if fence else output


def is_ordered(sql: str) -> bool:
    """Whether a query has an ORDER BY at its top level, outside of all brackets."""
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
    """The ``execution`` verdict."""
    if result.rows is None or gold.rows is None:
        return False
    if ordered:
        return result.rows == gold.rows
    return Counter(result.rows) == Counter(gold.rows)


def spider_task(
    databases: Path | None, *, seconds: float = 10.0, workers: int = 2
) -> Task:
    """The task, given the databases to run queries on.

    Args:
        databases: folder with ``{db_id}/{db_id}.sqlite``. Without it, or without a database, only
            ``exact_match`` is decided.

    Raises:
        FileNotFoundError: if there is no such folder.
    """
    if databases is not None and not databases.is_dir():
        raise FileNotFoundError(f"databases={databases}: no such folder")

    def score(predictions: Sequence[Prediction]) -> list[Verdicts]:
        with SqlSandbox(workers, Limits(seconds=seconds)) as sandbox:
            return _score(predictions, databases, sandbox)

    return Task(
        name="spider",
        primary="execution",
        extract=extract,
        score=score,
        fields=("target", "output", "db_id"),
        with_databases=spider_task,
    )


def _score(
    predictions: Sequence[Prediction], databases: Path | None, sandbox: SqlSandbox
) -> list[Verdicts]:
    verdicts: list[Verdicts] = []
    golds: dict[tuple[Path, str], Result] = {}
    without: Counter[str] = Counter()  # why predictions are undecided, and how many
    for start in range(0, len(predictions), _AT_ONCE):
        decided = []
        for prediction in predictions[start : start + _AT_ONCE]:
            output, target = extract(prediction["output"]), prediction["target"]
            verdict = {
                "execution": None,
                "exact_match": _canonical(output) == _canonical(target),
                "llm_jepa": None,
            }
            verdicts.append(verdict)
            database = _find(databases, prediction["db_id"])
            if isinstance(database, Path):
                decided.append((verdict, prediction, (database, output)))
            else:
                without[database] += 1
        targets = {(query[0], p["target"]): None for _, p, query in decided}
        new = [query for query in targets if query not in golds]
        results = sandbox.execute_many([*new, *(query for _, _, query in decided)])
        golds.update(zip(new, results[: len(new)], strict=True))
        for (verdict, prediction, (database, _)), result in zip(
            decided, results[len(new) :], strict=True
        ):
            target = prediction["target"]
            gold = golds[database, target]
            if gold.rows is None:
                without[f"{database}: a reference query fails ({gold.error})"] += 1
                continue
            verdict["execution"] = same_rows(result, gold, ordered=is_ordered(target))
            verdict["llm_jepa"] = _llm_jepa(prediction["output"], result, gold)
    for why, count in without.items():
        log.warning(
            f"{one_line(why, 500)}: {count} of {len(predictions)} predictions are undecided"
        )
    return verdicts


def _find(databases: Path | None, db_id: str) -> Path | str:
    """The database, or why there is none."""
    if databases is None:
        return "databases is not set"
    # A name, and no path: one could lead out of the folder.
    if Path(db_id).name != db_id or db_id in ("", ".."):
        return f"db_id={db_id!r} is no name of a database"
    path = databases / db_id / f"{db_id}.sqlite"
    # Unlike Path.is_file, it takes a name that is too long for one that is absent.
    return path if os.path.isfile(path) else f"{path} is absent"


def _canonical(sql: str) -> str:
    return " ".join(sql.split()).removesuffix(";").rstrip()


def _llm_jepa(output: str, result: Result, gold: Result) -> bool:
    # Outputs that cannot be an argument raise there, and are wrong even if gold is empty.
    if "\0" in output or len(output.encode(errors="replace")) >= _LONGEST_ARGUMENT:
        return False
    # The output goes to the program as it is: an option, or a fence, is not a query.
    if output.startswith("-") or output.strip() != extract(output):
        result = Result(error="not a query")
    printed = _printed(result)
    if any("\udc80" <= character <= "\udcff" for character in printed):
        return False  # it reads what is printed as UTF-8, and an error is wrong
    return printed == _printed(gold)


def _printed(result: Result) -> str:
    """What the ``sqlite3`` program prints in its list mode; nothing for an error."""
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
    """SQLite's ``%!.15g``: 15 digits, always with a decimal point."""
    if value in (float("inf"), float("-inf")):
        return "Inf" if value > 0 else "-Inf"
    mantissa, exponent, power = f"{value + 0.0:.15g}".partition("e")
    return (mantissa if "." in mantissa else f"{mantissa}.0") + exponent + power


TASK = spider_task(None)
