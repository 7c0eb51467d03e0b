"""Files that one part of the project writes and another reads."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from erjepa.utils.files import (
    CONFIG,
    let_others_read,
    moved_along,
    require_utf8,
    write_whole,
)
from erjepa.utils.jsonl import read_jsonl, to_jsonl


def test_rows_are_read_as_written_each_with_its_place(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"a": 1}, {"a": "é\u2028\n"}, {}]
    path.write_text("\n" + to_jsonl(rows) + " \n")
    places = [f"{path}:{line}" for line in (2, 3, 4)]
    assert list(read_jsonl(path)) == list(zip(places, rows, strict=True))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{'a'}", r"rows.jsonl:3: not JSON \(Expecting .*, column 2\)"),
        (b'{"a": "\xe9"}', r"rows.jsonl:3: not UTF-8 \(byte 0xe9, column 8\).*iconv"),
        (b"[" * 100_000, "rows.jsonl:3: JSON that cannot be read"),
        (b"[1]", "rows.jsonl:3: expected a JSON object, got list"),
    ],
)
def test_a_bad_line_is_named_when_it_is_reached(tmp_path, line, error):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    rows = read_jsonl(path)
    assert next(rows)[1] == {"a": 1}
    with pytest.raises(ValueError, match=error):
        next(rows)


@pytest.mark.skipif(shutil.which("iconv") is None, reason="no iconv program")
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16"])
def test_the_command_of_the_error_converts_the_file(tmp_path, encoding):
    text = "café" + " “€ 5” – it’s" * (encoding != "latin-1")
    file = tmp_path / "pairs.csv"
    file.write_bytes(text.encode(encoding))
    with pytest.raises(ValueError, match="convert it: iconv") as raised:
        require_utf8(file.read_bytes(), str(file))
    command = str(raised.value).rpartition("convert it: ")[2]
    done = subprocess.run([*command.split(), file], capture_output=True, check=True)
    assert done.stdout.decode() == text


def test_a_killed_write_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "whole.txt"
    write_whole(path, "before")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def killed(descriptor):
            raise KeyboardInterrupt

        patch.setattr(os, "fsync", killed)
        write_whole(path, "after")
    assert path.read_text() == "before"
    write_whole(path, "after")
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["whole.txt"]


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    def write(text):
        for _ in range(50):
            write_whole(tmp_path / "whole.txt", text)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))  # raises what a thread raised
    assert (tmp_path / "whole.txt").read_text() in "abcd"


def test_others_may_read_what_is_published(tmp_path):
    (tmp_path / "adapter").mkdir()
    weights = tmp_path / "adapter" / "weights"
    weights.touch(mode=0o600)
    mask = os.umask(0o027)
    try:
        let_others_read(tmp_path)
    finally:
        os.umask(mask)
    assert weights.stat().st_mode & 0o777 == 0o640
    assert os.umask(mask) == mask


def test_what_a_link_names_is_written(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_files_are_utf8_in_any_locale(tmp_path):
    text, file = "\u6570\u636e", tmp_path / "a.txt"
    code = (
        "import sys; from pathlib import Path; from erjepa.utils.files import write_whole; "
        f"write_whole(Path(sys.argv[1]), {ascii(text)})"
    )
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", code, str(file)]
    subprocess.run(command, env={**os.environ, **locale}, check=True)
    assert file.read_text("utf-8") == text


@pytest.mark.parametrize(
    ("path", "output_dir"),
    [
        ("{old}/ba/jan", "{old}/ba/feb"),
        ("{old}/ba/jan", "ba/feb"),
        ("{old}/ba/jan", "feb"),  # started in ba
        ("ba/jan", "ba/feb"),
        ("../ba/jan", "feb"),
    ],
)
def test_what_was_moved_along_with_a_run_is_found_next_to_it(
    tmp_path, monkeypatch, path, output_dir
):
    old, new = tmp_path / "old", tmp_path / "new" / "ba"
    path, output_dir = (name.format(old=old) for name in (path, output_dir))
    (old / "ba").mkdir(parents=True)
    monkeypatch.chdir(old)
    assert moved_along(path, output_dir, new / "feb") == Path(path)
    for run in ("jan", "feb"):
        (new / run).mkdir(parents=True)
        (new / run / CONFIG).touch()
    for name in ("", "/epoch_0"):  # a checkpoint that was deleted
        found = moved_along(path + name, output_dir, new / "feb")
        assert found == Path(f"{new}/jan{name}")
    # Only the run was moved.
    (old / "ba" / "jan").mkdir()
    shutil.rmtree(new / "jan")
    monkeypatch.chdir(old / "ba")
    assert moved_along(path, output_dir, new / "feb") == Path(path)


def test_a_path_that_was_not_moved_is_returned_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in ("jan", "feb"):
        (tmp_path / run).mkdir()
    assert moved_along("jan", "feb", tmp_path / "feb") == Path("jan")
    # Of two runs of the same name, it is the one of that time.
    (tmp_path / "new").mkdir()
    (tmp_path / "feb").rename(tmp_path / "new" / "feb")
    (tmp_path / "new" / "jan").mkdir()
    jan = str(tmp_path / "jan")
    assert moved_along(jan, "feb", tmp_path / "new" / "feb") == Path(jan)
