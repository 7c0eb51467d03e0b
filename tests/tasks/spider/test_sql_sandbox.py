"""Hostile SQL fails within its limits and leaves nothing behind.

Every query of this file runs beside a watched folder: its files stay byte-identical, and no file
appears there or in the working folder of the processes.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from erjepa.tasks.spider.sql_sandbox import SqlSandbox
from erjepa.tasks.spider.sql_worker import GRACE_SECONDS, Limits
from tests.harness.databases import ENDLESS, snapshot, write_shop

SECONDS = 0.3
LIMITS = Limits(seconds=SECONDS)
ROOT = Path(__file__).parents[2]
HAS_PROC = Path("/proc/self/limits").exists()
HAS_SETLIMIT = hasattr(sqlite3.Connection, "setlimit")
STUCK_IN_C = "SELECT instr(zeroblob(4000000), zeroblob(2000000) || x'01')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    write_shop(folder / "shop.sqlite")
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture
def shop(folder):
    """The database; fails the test that leaves anything behind."""
    before = snapshot(folder)
    yield folder / "shop.sqlite"
    assert snapshot(folder) == before


@pytest.fixture(scope="module")
def sandbox():
    with SqlSandbox(LIMITS) as sandbox:
        yield sandbox


def gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"  # dead, and nobody there to be told


# Rows and errors


def test_values_come_back_as_they_are(sandbox, shop):
    sql = "SELECT 1, 'a|b', NULL, x'00ff', 1.5, 9e999, 9223372036854775807, cast(x'ff41' AS TEXT)"
    values = (1, "a|b", None, b"\x00\xff", 1.5, float("inf"), 2**63 - 1, "\udcffA")
    assert sandbox.execute(shop, sql).rows == [values]
    assert [type(v) for v in sandbox.execute(shop, sql).rows[0]] == [
        type(v) for v in values
    ]
    assert sandbox.execute(shop, "SELECT * FROM clerk WHERE id < 0").rows == []


def test_names_of_databases_are_quoted(sandbox, tmp_path):
    path = write_shop(tmp_path / "a ?mode=rwc#%41.sqlite")
    assert sandbox.execute(path, "SELECT count(*) FROM shop").rows == [(5,)]
    missing = tmp_path / "missing.sqlite"
    assert "unable to open" in sandbox.execute(missing, "SELECT 1").error
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


# Attacks: name, SQL with {folder} for the watched one, and a part of the error

NOT_AUTHORIZED = "not authorized"
try:
    sqlite3.connect(":memory:").execute(f"SELECT {'(' * 5000}1{')' * 5000}")
except sqlite3.OperationalError as error:
    BRACKETS = str(error)  # differs between versions of SQLite

DENIED = {
    "attach": ("ATTACH '{folder}/new.sqlite' AS new", NOT_AUTHORIZED),
    "detach": ("DETACH main", NOT_AUTHORIZED),
    "pragma": ("PRAGMA writable_schema=1", NOT_AUTHORIZED),
    "pragma journal": ("PRAGMA journal_mode=WAL", NOT_AUTHORIZED),
    "pragma table": ("SELECT * FROM pragma_table_info('clerk')", NOT_AUTHORIZED),
    "pragma files": ("SELECT file FROM pragma_database_list", NOT_AUTHORIZED),
    "vacuum": ("VACUUM", "denied"),
    "vacuum into": ("VACUUM INTO '{folder}/new.sqlite'", "denied"),
    "begin": ("BEGIN IMMEDIATE", NOT_AUTHORIZED),
    "savepoint": ("SAVEPOINT a", NOT_AUTHORIZED),
    "drop": ("DROP TABLE clerk", NOT_AUTHORIZED),
    "delete": ("DELETE FROM clerk", NOT_AUTHORIZED),
    "delete returning": ("DELETE FROM clerk RETURNING *", NOT_AUTHORIZED),
    "update": ("WITH t AS (SELECT 1) UPDATE clerk SET age = 0", NOT_AUTHORIZED),
    "insert": ("INSERT INTO clerk SELECT * FROM clerk", NOT_AUTHORIZED),
    "create": ("CREATE TABLE a (b)", NOT_AUTHORIZED),
    "temp table": ("CREATE TEMP TABLE a AS SELECT * FROM clerk", NOT_AUTHORIZED),
    "virtual table": ("CREATE VIRTUAL TABLE a USING fts5(b)", NOT_AUTHORIZED),
    "trigger": (
        "CREATE TRIGGER a INSERT ON clerk BEGIN SELECT 1; END",
        NOT_AUTHORIZED,
    ),
    "schema": ("UPDATE sqlite_master SET sql = ''", ""),
    "analyze": ("ANALYZE", NOT_AUTHORIZED),
    "reindex": ("REINDEX", NOT_AUTHORIZED),
    "explained drop": ("EXPLAIN DROP TABLE clerk", NOT_AUTHORIZED),
    "extension": ("SELECT load_extension('{folder}/secret.txt')", NOT_AUTHORIZED),
    "tokenizer": ("SELECT fts3_tokenizer('simple', x'4141414141414141')", ""),
    "writefile": ("SELECT writefile('{folder}/new.txt', 'x')", "no such function"),
    "readfile": ("SELECT readfile('{folder}/secret.txt')", "no such function"),
    "edit": ("SELECT edit('x', 'touch {folder}/new.txt')", "no such function"),
    "file as table": ("SELECT * FROM fsdir('{folder}')", "no such table"),
    "shell": (".shell touch {folder}/new.txt", "syntax error"),
    "output": (".output {folder}/new.txt\nSELECT 1;", "syntax error"),
    "two": ("SELECT 1; DROP TABLE clerk", "one statement"),
    "two hidden": ("SELECT 1; /* ; */ -- ;\nSELECT 2", "one statement"),
    "comment only": ("-- SELECT 1", "no statement"),
    "empty": ("", "no statement"),
    "open comment": ("/* DROP TABLE clerk", "no statement"),
    "nul": ("SELECT 1\0; DROP TABLE clerk", "null character"),
    "surrogate": ("SELECT '\ud800'", ""),
    "megabyte": ("SELECT '" + "x" * 2**20 + "'", "bytes of SQL"),
    "zeroblob": ("SELECT zeroblob(2000000000)", "too big"),
    "brackets": ("SELECT " + "(" * 5000 + "1" + ")" * 5000, BRACKETS),
    "depth": ("SELECT 1" + " + 1" * 5000, "too large"),
    "subqueries": ("SELECT (" * 300 + "1" + ")" * 300, ""),
    "compound": ("SELECT 1" + " UNION ALL SELECT 1" * 600, "too many terms"),
    "joins": ("SELECT 1 FROM " + ", ".join(["clerk"] * 100), "at most 64"),
}
BOMBS = {
    "randomblob": "SELECT randomblob(1000000000)",
    "group_concat": "SELECT group_concat(hex(zeroblob(2000000))) FROM clerk a, clerk b",
    "wide": f"SELECT {', '.join(['hex(zeroblob(1000000))'] * 500)}",
    "doubling": "SELECT replace(replace(hex(zeroblob(1000000)),'0','{0}'),'0','{0}')".format(
        "0" * 100
    ),
    "sort": ENDLESS.format("hex(randomblob(100000))") + " ORDER BY 1",
    "union": ENDLESS.format("x, hex(randomblob(100000))")
    + " UNION SELECT 1, 2 ORDER BY 2",
    "endless": ENDLESS.format("count(*)"),
    "endless rows": ENDLESS.format("x"),
    "cross join": "SELECT count(*) FROM clerk a, clerk b, clerk c, clerk d, clerk e, clerk f",
    "cross rows": "SELECT * FROM clerk a, clerk b, clerk c, clerk d, clerk e, clerk f",
    "in C": STUCK_IN_C,
    "printf": "SELECT printf('%.*c', 1000000000, 'x') || printf('%.*c', 1000000000, 'x')",
}


@pytest.mark.parametrize("name", DENIED)
def test_denied(name, sandbox, shop):
    sql, error = DENIED[name]
    start = time.monotonic()
    result = sandbox.execute(shop, sql.replace("{folder}", str(shop.parent)))
    assert result.rows is None and error in result.error
    assert time.monotonic() - start < SECONDS + GRACE_SECONDS  # refused, not stopped


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_stopped(name, sandbox, shop):
    start = time.monotonic()
    result = sandbox.execute(shop, BOMBS[name])
    assert result.rows is None and result.error
    assert time.monotonic() - start < SECONDS + GRACE_SECONDS + 1.5
    assert sandbox.execute(shop, "SELECT count(*) FROM clerk").rows == [(100,)]


@pytest.mark.parametrize(
    "sql, rows",
    [
        ("SELECT count(*) FROM sqlite_master", [(3,)]),
        ("SELECT 1 -- DROP TABLE clerk", [(1,)]),
        ("/* a */ SELECT /* ; */ 1; -- b", [(1,)]),
        ("WITH RECURSIVE t(x) AS (SELECT 1 UNION SELECT x+1 FROM t WHERE x<9) "
         "SELECT sum(x) FROM t", [(45,)]),
        ("SELECT age, rank() OVER (ORDER BY age) FROM clerk WHERE id < 2", [(20, 1), (21, 2)]),
        ("SELECT max(name) FROM clerk WHERE name LIKE '%9%' AND age IN (SELECT 20)", [("clerk 98",)]),
    ],
)  # fmt: skip
def test_reads_are_allowed(sql, rows, sandbox, shop):
    assert sandbox.execute(shop, sql).rows == rows


# Each limit by itself


def test_limits_of_a_result(shop):
    limits = Limits(seconds=5, rows=50, size=2000, value_length=10_000, sql_length=300)
    with SqlSandbox(limits) as sandbox:
        first = "SELECT id FROM clerk ORDER BY id LIMIT "
        assert len(sandbox.execute(shop, first + "50").rows) == 50
        assert "more than 50 rows" in sandbox.execute(shop, first + "51").error
        text = "SELECT hex(zeroblob({}))"
        assert sandbox.execute(shop, text.format(990)).rows == [("0" * 1980,)]
        assert "2000 bytes" in sandbox.execute(shop, text.format(1000)).error
        if HAS_SETLIMIT:
            length = "SELECT length(zeroblob({}))"
            assert sandbox.execute(shop, length.format(9_000)).rows == [(9000,)]
            assert "too big" in sandbox.execute(shop, length.format(10_001)).error
        assert sandbox.execute(shop, "SELECT 1".ljust(300)).rows == [(1,)]
        assert "300 bytes" in sandbox.execute(shop, "SELECT 1".ljust(301)).error


def test_sorting_needs_memory_and_no_file(shop):
    sql = (
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM t WHERE x < {}) "
        "SELECT length(y) FROM (SELECT hex(randomblob(50000)) AS y FROM t ORDER BY y)"
    )
    with SqlSandbox(Limits(seconds=20, memory=2**28)) as sandbox:
        pid = sandbox.pid
        assert sandbox.execute(shop, sql.format(300)).rows == [(100_000,)] * 300
        # More than SQLite's half, and less than the whole: its own limit is what stops it.
        error = sandbox.execute(shop, sql.format(1500)).error
        assert "MemoryError" in error or "out of memory" in error
        assert sandbox.pid == pid


@pytest.mark.skipif(not HAS_PROC, reason="reads /proc")
def test_processes_are_limited(sandbox):
    lines = Path(f"/proc/{sandbox.pid}/limits").read_text().splitlines()
    soft = {line[:26].strip(): line[26:].split()[0] for line in lines}
    assert soft["Max address space"] == str(LIMITS.memory)
    assert soft["Max file size"] == soft["Max core file size"] == "0"
    assert soft["Max processes"] == "0"


# Processes


def test_a_killed_worker_costs_its_own_query_only(shop):
    with SqlSandbox(Limits(seconds=20)) as sandbox:
        pid = sandbox.pid
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        assert "died" in sandbox.execute(shop, ENDLESS.format("count(*)")).error
        assert sandbox.execute(shop, "SELECT 1").rows == [(1,)]
        other = sandbox.pid
        assert other != pid
        os.kill(other, signal.SIGKILL)
        time.sleep(0.1)
        assert sandbox.execute(shop, "SELECT 2").rows == [(2,)]
        assert sandbox.pid not in (pid, other)


def test_an_interrupted_wait_does_not_shift_answers(shop, monkeypatch):
    ask = SqlSandbox._ask

    def interrupted(self, question):
        ask(self, question)
        self._process.stdin.write(question)
        self._process.stdin.flush()
        raise KeyboardInterrupt

    with SqlSandbox(LIMITS) as sandbox:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(SqlSandbox, "_ask", interrupted)
            sandbox.execute(shop, "SELECT 1")
        assert sandbox.execute(shop, "SELECT 2").rows == [(2,)]


def test_no_process_is_left_when_the_block_raises(shop):
    with pytest.raises(ZeroDivisionError), SqlSandbox(LIMITS) as sandbox:
        pids = [sandbox.pid]
        assert "killed" in sandbox.execute(shop, STUCK_IN_C).error
        assert "time limit" in sandbox.execute(shop, BOMBS["endless"]).error
        pids.append(sandbox.pid)
        assert len(set(pids)) == 2
        raise ZeroDivisionError
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.skipif(not HAS_PROC, reason="reads /proc")
def test_no_process_is_left_when_the_parent_is_killed(shop):
    script = (
        "import sys; from erjepa.tasks.spider.sql_sandbox import Limits, SqlSandbox\n"
        "with SqlSandbox(Limits(seconds=0.5)) as sandbox:\n"
        "    print(sandbox.pid, flush=True)\n"
        "    sandbox.execute(*sys.argv[1:])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(shop), STUCK_IN_C],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    pid = int(parent.stdout.readline())
    time.sleep(0.2)
    assert not gone(pid)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while not gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Fuzz

FRAGMENTS = """
    SELECT SELECT SELECT * FROM FROM WHERE GROUP BY ORDER BY HAVING LIMIT JOIN ON USING AS
    UNION INTERSECT EXCEPT ALL DISTINCT AND OR NOT IN LIKE GLOB BETWEEN NULL IS CASE WHEN
    THEN ELSE END WITH RECURSIVE VALUES OVER PARTITION CAST EXISTS COLLATE ESCAPE EXPLAIN
    clerk clerk shop shop clerk.id clerk.name clerk.age shop.id clerk_id id name age a b
    sqlite_master sqlite_temp_master pragma_table_list json_each dbstat sqlite_dbpage
    ATTACH DETACH PRAGMA VACUUM INTO BEGIN COMMIT ROLLBACK SAVEPOINT CREATE TEMP TABLE VIEW
    TRIGGER VIRTUAL DROP ALTER ADD RENAME INSERT REPLACE UPDATE SET DELETE RETURNING REINDEX
    ANALYZE DATABASE journal_mode writable_schema temp_store_directory '{folder}/new.txt'
    ( ) ( ) , , ; . = < > + - * / % || | & -- /* */ ' " ` [ ] ? :a @b $c 0 1 2 -1 1e999 0x7f
    'x' "y" x'00ff' '%' 9223372036854775807 99999999999 count(*) max( avg( abs( hex( zeroblob(
    randomblob( replace( printf( group_concat( char( load_extension( writefile( readfile(
    fts3_tokenizer( json( 1000000 1000000000 \x00 é 表 .shell .read .open
""".split()
SEEDS = [sql for sql, _ in DENIED.values() if len(sql) < 300] + [
    "SELECT name, count(*) FROM clerk GROUP BY age HAVING count(*) > 2 ORDER BY name",
    "SELECT a.name FROM clerk AS a JOIN shop AS b ON a.id = b.clerk_id WHERE b.id < 3",
    "SELECT age FROM clerk EXCEPT SELECT id FROM shop",
]


CALLS = """
    abs({}) hex({}) length({}) typeof({}) zeroblob({}) randomblob({}) upper({}) sum({})
    count({}) max({},{}) replace({},{},{}) printf('%d{}',{}) group_concat({}) instr({},{})
    substr({},{},{}) char({}) load_extension({}) writefile('{folder}/new.txt',{}) round({})
    sum({})OVER(ORDER~BY~{}) likely({}) total({}) quote({}) unicode({}) random()
""".split()
VALUES = """
    a.id b.id a.id b.id a.name a.age b.clerk_id 0 1 -1 7 1000 1000000 3000000000 1e999 0.5
    NULL 'x' '%' '' x'00ff' 9223372036854775807 a.none
""".split()
OPERATORS = "+ - * / % || = <> < >= AND OR LIKE GLOB IS & <<".split()
TABLES = """
    clerk~a,shop~b clerk~a,shop~b clerk~a~LEFT~JOIN~shop~b~ON~a.id=b.id
    clerk~a,shop~b,clerk~c clerk~a,shop~b,clerk~c,clerk~d
""".split()


def expression(rng, depth):
    kind = rng.random() if depth else 0
    if kind < 0.4:
        return rng.choice(VALUES)
    if kind < 0.65:
        call = rng.choice(CALLS)
        parts = call.replace("{folder}", "\0").split("{}")
        filled = [parts[0]]
        for part in parts[1:]:
            filled += [expression(rng, depth - 1), part]
        return "".join(filled).replace("\0", "{folder}")
    if kind < 0.9:
        sides = [expression(rng, depth - 1) for _ in range(2)]
        return f" {rng.choice(OPERATORS)} ".join(sides)
    return f"({select(rng, depth - 1)})"


def select(rng, depth=3):
    text = f"SELECT {expression(rng, depth)} FROM {rng.choice(TABLES)}"
    for clause in ("WHERE", "GROUP BY"):
        if rng.random() < 0.2:
            text += f" {clause} {expression(rng, depth - 1 if depth else 0)}"
    if depth and rng.random() < 0.15:
        text += (
            f" {rng.choice(['UNION', 'UNION ALL', 'EXCEPT'])} {select(rng, depth - 1)}"
        )
    if depth == 3 and rng.random() < 0.5:
        text += rng.choice([" ORDER BY 1", " LIMIT 5", f" ORDER BY {rng.random()}"])
    if depth and rng.random() < 0.1:
        inner = select(rng, depth - 1)
        limit = rng.choice(["", " LIMIT 9"])
        text = f"WITH RECURSIVE t(id) AS ({inner} UNION ALL SELECT id+1 FROM t{limit}) {text}, t"
    return text


def fuzzed(seed):
    """A query of a grammar, a known one, or words; some with a few words changed."""
    rng = random.Random(seed)
    kind = rng.random()
    if kind < 0.15:
        words = ["SELECT", *rng.choices(FRAGMENTS, k=rng.randint(1, 25))]
    else:
        words = (select(rng) if kind < 0.7 else rng.choice(SEEDS)).split(" ")
    for _ in range(rng.choice([0, 0, 0, 0, 1, 3])):
        place = rng.randint(0, len(words))
        new = rng.choices(FRAGMENTS, k=rng.randint(0, 2))
        words[place : place + rng.randint(0, 2)] = new
    words = [word.replace("~", " ") for word in words]
    text = rng.choice([" "] * 9 + ["\n"]).join(words)
    if rng.random() < 0.05:
        place = rng.randint(0, len(text))
        text = (
            text[:place] + chr(rng.choice([0, 10, 39, 0xD800, 0x10FFFF])) + text[place:]
        )
    return text


def run_fuzzed(shop, seeds):
    queries = [(shop, fuzzed(s).replace("{folder}", str(shop.parent))) for s in seeds]
    before, start = snapshot(shop.parent), time.monotonic()
    with SqlSandbox(LIMITS) as sandbox:
        for i in range(0, len(queries), 100):
            chunk = queries[i : i + 100]
            for query in chunk:
                result = sandbox.execute(*query)
                assert (result.rows is None) == (result.error is not None)
            assert snapshot(shop.parent) == before, chunk
        pid = sandbox.pid
        known = "SELECT sum(id) FROM clerk"
        assert sandbox.execute(shop, known).rows == [(4950,)]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert time.monotonic() - start < (SECONDS + GRACE_SECONDS) * len(queries)


@pytest.mark.slow
def test_fuzzed_queries(shop):
    run_fuzzed(shop, range(300))


@pytest.mark.slow
def test_ten_thousand_fuzzed_queries(shop):
    run_fuzzed(shop, range(1000, 11_000))


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.text(st.characters(codec=None), max_size=50))
def test_any_text_has_rows_or_an_error(sandbox, shop, text):
    result = sandbox.execute(shop, text)
    assert (result.rows is None) == (result.error is not None)
    result = sandbox.execute(shop, "SELECT '" + text.replace("'", "''") + "'")
    clean = "\0" not in text and text.isprintable()
    assert result.rows == [(text,)] or not clean


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_workers_start_without_the_environment(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    with SqlSandbox() as sandbox:
        variables = Path(f"/proc/{sandbox.pid}/environ").read_bytes()
    assert b"secret" not in variables and b"HOME=" not in variables
