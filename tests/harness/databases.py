"""A database for hostile SQL, and snapshots that show what it changed."""

import hashlib
import os
import sqlite3

ENDLESS = (
    "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM t) SELECT {} FROM t"
)


def write_shop(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE clerk (id INTEGER PRIMARY KEY, name, age)")
        connection.executemany(
            "INSERT INTO clerk VALUES (?, ?, ?)",
            [(i, f"clerk {i}", 20 + i % 7) for i in range(100)],
        )
        connection.execute("CREATE INDEX by_age ON clerk (age)")
        connection.execute("CREATE TABLE shop (id INTEGER PRIMARY KEY, clerk_id)")
        connection.executemany(
            "INSERT INTO shop VALUES (?, ?)", [(i, i) for i in range(5)]
        )
    connection.close()
    return path


def snapshot(folder):
    """Return every file with its content and times, and the files of the workers' folder."""
    files = {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime)
        for path in folder.rglob("*")
        if path.is_file()
    }
    return files, sorted(os.listdir(os.path.abspath(os.sep)))
