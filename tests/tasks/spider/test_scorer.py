"""Verdicts on Spider, on databases made here and on real ones."""

import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from functools import partial

import pytest

from erjepa.tasks.spider import scorer
from erjepa.tasks.spider.scorer import (
    _printed,
    _printed_float,
    extract,
    is_ordered,
    spider_task,
)
from erjepa.tasks.spider.sql_sandbox import Limits, SqlSandbox
from erjepa.tasks.summary import seen_in
from tests.harness.data import REAL_DATA, real_texts

VERDICTS = ("execution", "exact_match", "llm_jepa")


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    """``shop``: three rows, a tie, a NULL, an empty table."""
    folder = tmp_path_factory.mktemp("database")
    (folder / "shop").mkdir()
    with sqlite3.connect(folder / "shop" / "shop.sqlite") as connection:
        connection.executescript(
            """
            CREATE TABLE item (name TEXT, price REAL, stock INTEGER);
            INSERT INTO item VALUES ('pen', 1.0, 1), ('ink', 2.5, NULL), ('cap', 2.5, 3);
            CREATE TABLE sale (id INTEGER);
            """
        )
    connection.close()
    return folder


def score(databases, pairs, db_id="shop"):
    predictions = [{"target": t, "output": o, "db_id": db_id} for t, o in pairs]
    verdicts = spider_task(databases).score(predictions)
    assert all(tuple(verdict) == VERDICTS for verdict in verdicts)
    return [tuple(verdict.values()) for verdict in verdicts]


# Target, output, and the verdicts in order: execution, exact_match, llm_jepa
NAMES = "SELECT name FROM item"
BY_PRICE = "SELECT name FROM item ORDER BY price, name"
EMPTY = "SELECT * FROM sale"
CASES = {
    "same": (NAMES, NAMES, (True, True, True)),
    "white space": (NAMES, "SELECT  name\nFROM item ; ", (True, True, True)),
    "case": (NAMES, "select name from ITEM", (True, False, True)),
    "other rows": (NAMES, "SELECT name FROM item WHERE stock = 1", (False, False, False)),
    "other column": (NAMES, "SELECT price FROM item", (False, False, False)),
    "order is free": (NAMES, NAMES + " ORDER BY name", (True, False, False)),
    "order is asked": (BY_PRICE, NAMES + " ORDER BY name", (False, False, False)),
    "order lost": (BY_PRICE, NAMES, (False, False, False)),
    "order kept": (BY_PRICE, "SELECT name FROM item ORDER BY 1 = 1, price, name", (True, False, True)),
    "ordered inside": ("SELECT name FROM (SELECT * FROM item ORDER BY price)",
                       NAMES + " ORDER BY name", (True, False, False)),
    "as often": ("SELECT price FROM item", "SELECT DISTINCT price FROM item", (False, False, False)),
    "int and float": ("SELECT 1", "SELECT 1.0", (True, False, False)),
    "nearly": ("SELECT 0.3", "SELECT 0.1 + 0.2", (False, False, True)),
    "text and number": ("SELECT 1", "SELECT '1'", (False, False, True)),
    "null and empty": ("SELECT NULL", "SELECT ''", (False, False, True)),
    "null and null": ("SELECT NULL", "SELECT stock FROM item WHERE stock IS NULL", (True, False, True)),
    "blob and text": ("SELECT 'a'", "SELECT x'61'", (False, False, True)),
    "columns in order": ("SELECT 1, 2", "SELECT 2, 1", (False, False, False)),
    "joined columns": ("SELECT 1, 2", "SELECT '1|2'", (False, False, True)),
    "error": (NAMES, "SELECT nothing FROM item", (False, False, False)),
    "error and empty": (EMPTY, "SELECT nothing FROM item", (False, False, True)),
    "no answer and empty": (EMPTY, "", (False, False, True)),
    "both errors": ("SELECT nothing", "SELECT nothing", (None, True, None)),
    "two errors": ("SELECT nothing", "SELEC", (None, False, None)),
    "empty and empty": (EMPTY, "SELECT name FROM item WHERE 0", (True, False, True)),
    "fence": (NAMES, f"```sql\n{NAMES};\n```", (True, True, False)),
    "comment in front": (NAMES, f"-- all\n{NAMES}", (True, False, False)),
    "two statements": (NAMES, f"{NAMES}; {NAMES}", (False, False, False)),
    "writes": (NAMES, "DROP TABLE item", (False, False, False)),
    "nul": (EMPTY, "SELECT 1 \0", (False, False, False)),
    "too long to run": (EMPTY, "x" * 200_000, (False, False, False)),
    "not UTF-8": ("SELECT cast(x'ff' AS TEXT)", "SELECT cast(x'ff' AS TEXT)", (True, True, False)),
    "surrogate": (NAMES, "SELECT '\udcff'", (False, False, False)),
}  # fmt: skip


@pytest.fixture(scope="module")
def verdicts(databases):
    pairs = [(target, output) for target, output, _ in CASES.values()]
    return dict(zip(CASES, score(databases, pairs), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name, verdicts):
    assert verdicts[name] == CASES[name][2]


def test_verdicts_without_a_database(databases, tmp_path):
    pairs = [(NAMES, NAMES), (NAMES, "SELECT 1")]
    undecided = [(None, True, None), (None, False, None)]
    assert score(None, pairs) == undecided
    assert score(databases, pairs, db_id="elsewhere") == undecided
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match="databases=.*no such folder"):
        spider_task(tmp_path / "nowhere")
    assert spider_task(None).primary == VERDICTS[0]
    assert spider_task(None).score([]) == []


def test_order_of_many_and_a_mixed_lot(databases):
    lot = [{"target": NAMES, "output": NAMES, "db_id": "shop"} for _ in range(250)]
    lot[20] = {**lot[20], "output": "SELECT 1"}
    lot[240] = {**lot[240], "db_id": "elsewhere"}
    expected = [True] * 250
    expected[20], expected[240] = False, None
    verdicts = spider_task(databases).score(lot)
    assert [verdict["execution"] for verdict in verdicts] == expected
    assert [verdict["llm_jepa"] for verdict in verdicts] == expected


def test_reference_queries_run_once(databases, monkeypatch):
    seen = []
    run = SqlSandbox.execute

    def execute(self, *query):
        seen.append(query)
        return run(self, *query)

    monkeypatch.setattr(SqlSandbox, "execute", execute)
    score(databases, [(NAMES, f"SELECT {i}") for i in range(40)])
    assert len(seen) == 41


def test_a_slow_answer_is_wrong_in_time(databases, monkeypatch):
    quick = partial(SqlSandbox, limits=Limits(seconds=0.3))
    monkeypatch.setattr(scorer, "SqlSandbox", quick)
    slow = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM t) SELECT sum(x) FROM t"
    start = time.monotonic()
    expected = [(False, False, False), (True, True, True)]
    assert score(databases, [(NAMES, slow), (NAMES, NAMES)]) == expected
    assert time.monotonic() - start < 3


def test_extract():
    assert extract(" SELECT 1;\n") == "SELECT 1;"
    for fence in ("```sql\n{}\n```", "```\n{}```", "\n```SQL \n{}\n\n```\n"):
        assert extract(fence.format("SELECT 1\nFROM a")) == "SELECT 1\nFROM a"
    for text in (
        "Here: ```sql\nSELECT 1\n```",
        "```sql\nSELECT 1\n```\nor\n```sql\nSELECT 2\n```",
        "SQL: SELECT 1",
        "```sql\nSELECT 1",
    ):
        assert extract(text) == text
    assert extract("") == ""


@pytest.mark.parametrize(
    "sql, ordered",
    [
        ("SELECT a FROM b ORDER BY a", True),
        ("select a from b order\n by a desc limit 1", True),
        ("SELECT a FROM b ORDER /* x */ BY a", True),
        ("SELECT a FROM (SELECT a FROM b ORDER BY a)", False),
        ("SELECT a FROM b WHERE a IN (SELECT ')' ORDER BY a)", False),
        ("SELECT a FROM b WHERE a = 'ORDER BY a'", False),
        ("SELECT a FROM b WHERE a = 'it''s (' ORDER BY a", True),
        ('SELECT "order by" FROM [order by]', False),
        ("SELECT a FROM b -- ORDER BY a", False),
        ("SELECT a, rank() OVER (ORDER BY a) FROM b", False),
        ("SELECT a FROM (SELECT 1 ORDER BY 1) UNION SELECT 2 ORDER BY 1", True),
        ("SELECT a FROM border, bystander", False),
        ("", False),
    ],
)
def test_is_ordered(sql, ordered):
    assert is_ordered(sql) is ordered


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no sqlite3 program")
def test_rows_are_printed_as_the_program_does(databases):
    """The sqlite3 program, run on these harmless queries only."""
    path = databases / "shop" / "shop.sqlite"
    queries = [
        "SELECT * FROM item",
        "SELECT name, NULL, '', price FROM item ORDER BY name DESC",
        "SELECT 1.0, -0.0, 100000.0, 1e14, 1e15, 1e16, 1e100, 1e-4, 1e-5, 9e999, -9e999",
        "SELECT 0.1 + 0.2, 1.0 / 3, 2.0 / 3 * 1e10, 123456.789, 9223372036854775807",
        "SELECT x'6162', 'a|b', 'é', 'a' || char(0) || 'b', x'610062', 'a' || char(10)",
        "SELECT * FROM sale",
        "SELECT nothing",
    ]
    with SqlSandbox() as sandbox:
        for sql in queries:
            command = ["sqlite3", "-readonly", "-batch", "-init", "/dev/null"]
            run = subprocess.run([*command, path, sql], capture_output=True, text=True)
            assert _printed(sandbox.execute(path, sql)) == run.stdout, sql


def test_floats_are_printed_as_sqlite_does():
    """All but those where SQLite rounds the 15th digit the other way."""
    rng = random.Random(0)
    memory, other = sqlite3.connect(":memory:"), 0
    for i in range(20_000):
        value = struct.unpack("d", rng.randbytes(8))[0]
        if i % 2:
            value = round(rng.uniform(-1e4, 1e4), rng.randint(0, 6))
        if value == value:
            query = "SELECT printf('%!.15g', ?)"
            [theirs] = memory.execute(query, (value,)).fetchone()
            other += _printed_float(value) != theirs
            assert _printed_float(value)[:13] == theirs[:13]
    memory.close()
    assert other < 200


def test_no_torch_for_scoring():
    code = "import sys, erjepa.tasks.spider.scorer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# The real data

SPIDER = REAL_DATA / "spider"


def test_real_queries_against_themselves_and_corrupted():
    lot = [
        {"target": target, "output": target, "db_id": "department_store"}
        for split in ("train", "test")
        for user, target in real_texts(f"spider/{split}.jsonl")
        if user.startswith("For db_id:[department_store]\n")
    ]
    assert len(lot) == 88
    task = spider_task(SPIDER / "database")
    assert task.score(lot) == [dict.fromkeys(VERDICTS, True)] * 88
    # One row more than it should have, or a name that is not there.
    for corrupt in (
        lambda sql: f"SELECT * FROM ({sql}) UNION ALL SELECT * FROM (SELECT 1)",
        lambda sql: sql.replace("FROM", "FROM nothing,", 1),
        lambda sql: "SELECT 'nothing of this'",
        lambda sql: "",
    ):
        wrong = [{**p, "output": corrupt(p["target"])} for p in lot]
        verdicts = task.score(wrong)
        assert not any(v["execution"] or v["exact_match"] for v in verdicts)
    # The last is a failed query: for LLM-JEPA as good as an empty result.
    with SqlSandbox() as gold:
        path = SPIDER / "database" / "department_store" / "department_store.sqlite"
        empty = [gold.execute(path, p["target"]).rows == [] for p in lot]
    assert [v["llm_jepa"] for v in verdicts] == empty


def test_real_overlap():
    train, test = (real_texts(f"spider/{split}.jsonl") for split in ("train", "test"))
    assert len(test) == 1447
    queries = {query for _, query in train}
    assert sum(query in queries for _, query in test) == 1041
    seen = seen_in(train, dict(enumerate(test)))
    assert len(seen.targets) == 1042  # one differs in its white space


def test_a_reference_that_fails_says_nothing_and_names_the_database(
    databases, tmp_path, caplog
):
    """A text, an empty file, half a database, a pointer to a large file, none at all."""
    whole = (databases / "shop" / "shop.sqlite").read_bytes()
    broken = {
        "text": b"no database\n" * 100,
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "pointer": b"version https://git-lfs.github.com/spec/v1\nsize 4096\n",
    }
    for name, content in broken.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.sqlite").write_bytes(content)
    shutil.copytree(databases / "shop", tmp_path / "shop")
    names = [*broken, "absent", "shop"]
    predictions = [{"target": NAMES, "output": "SELECT", "db_id": n} for n in names]
    predictions.append({"target": NAMES, "output": NAMES, "db_id": "text"})
    verdicts = spider_task(tmp_path).score(predictions)
    assert [v["execution"] for v in verdicts] == [None] * 5 + [False, None]
    assert [v["llm_jepa"] for v in verdicts] == [None] * 5 + [False, None]
    assert [v["exact_match"] for v in verdicts] == [False] * 6 + [True]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 5
    for name in broken:
        path = tmp_path / name / f"{name}.sqlite"
        (line,) = [
            line for line in said if line.startswith(f"{path}: a reference query")
        ]
        count = 2 if name == "text" else 1
        assert line.endswith(f": {count} of 7 predictions are undecided")
    assert f"{tmp_path}/absent/absent.sqlite is absent: 1 of 7" in said[-1]


@pytest.mark.parametrize(
    "escape", ["{}/shop", "../shop", "shop/", "..", ".", "", "a\0b", "a\n\x1b" * 1666]
)
def test_a_name_of_a_database_leads_nowhere_else(escape, databases, tmp_path, caplog):
    """Of a path joined with an absolute one only the latter would be left."""
    name = escape.format(databases)
    elsewhere = tmp_path / "databases"
    elsewhere.mkdir()
    (tmp_path / "..sqlite").write_bytes(
        (databases / "shop" / "shop.sqlite").read_bytes()
    )
    shutil.copytree(databases / "shop", tmp_path / "shop")
    for path in (f"{databases}/shop.sqlite", f"{tmp_path}/shop.sqlite"):
        shutil.copy(databases / "shop" / "shop.sqlite", path)
    assert score(elsewhere, [(NAMES, NAMES)], name) == [(None, True, None)]
    (record,) = caplog.records
    assert len(record.getMessage()) < 600 and record.getMessage().isprintable()
