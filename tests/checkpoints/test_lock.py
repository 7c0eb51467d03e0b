"""One run or grid writes to a folder at a time, and its lock ends with its process."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from erjepa.checkpoints import lock
from erjepa.checkpoints.lock import LOCK, FolderLock


def holder(folder, **settings):
    """A forked process that holds the folder until it is killed."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            held = FolderLock(folder, "run", **settings)
            assert held.fileno()
            if not os.fork():  # such as a worker of a data loader
                time.sleep(20)
                os._exit(0)
            os.write(write, b"1")
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1) == b"1"
    return pid


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lock.os, "write", full)
    with pytest.raises(OSError, match=r"No space left on device: .*/out/\.lock"):
        FolderLock(tmp_path / "out", "run")
    monkeypatch.undo()
    FolderLock(tmp_path / "out", "run").release()


def test_a_second_run_is_refused_and_told_who_holds_the_folder(tmp_path):
    pid = holder(tmp_path / "out")
    start = time.monotonic()
    with pytest.raises(BlockingIOError) as error:
        FolderLock(tmp_path / "out", "run")
    assert time.monotonic() - start < 1
    said = json.loads((tmp_path / "out" / LOCK).read_text())
    host = socket.gethostname()
    assert (said["pid"], said["host"]) == (pid, host)
    assert str(error.value).startswith(
        f"another run is running on {tmp_path / 'out'}: process {pid} on {host}, since "
        f"{said['since']};"
    )
    end(pid)
    # At once, though what the killed one has started is still there.
    FolderLock(tmp_path / "out", "run").release()
    assert time.monotonic() - start < 2


def test_processes_that_hold_it_too_are_waited_for(tmp_path, monkeypatch):
    end(holder(tmp_path, inherited=True))
    monkeypatch.setattr(lock, "_PATIENCE", 0.3)
    start = time.monotonic()
    with pytest.raises(BlockingIOError, match="another run is running"):
        FolderLock(tmp_path, "run")
    assert 0.3 <= time.monotonic() - start < 2


def test_a_holder_on_another_host_is_taken_to_live(tmp_path, monkeypatch):
    monkeypatch.setattr(lock.socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setattr(lock.os, "getpid", lambda: 2**22 + 1)  # no process has it here
    held = FolderLock(tmp_path, "grid")
    monkeypatch.undo()
    monkeypatch.setattr(lock.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(BlockingIOError, match="another grid .* wait for it"):
        FolderLock(tmp_path, "run")
    held.release()
    FolderLock(tmp_path, "run").release()


def test_a_folder_that_was_deleted_or_replaced_is_noticed(tmp_path):
    held = FolderLock(tmp_path / "out", "run")
    held.require_folder()
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="was deleted or replaced"):
        held.require_folder()
    FolderLock(tmp_path / "out", "run").release()
    with pytest.raises(FileNotFoundError, match="was deleted or replaced"):
        held.require_folder()


def test_without_locks_there_is_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(lock, "fcntl", None)
    for _ in range(2):
        FolderLock(tmp_path, "run")
    assert caplog.text.count("make sure that only one run writes to") == 2


def test_a_released_lock_leaves_no_file(tmp_path):
    held = FolderLock(tmp_path, "run")
    held.release()
    held.release()
    assert not (tmp_path / LOCK).exists()


def test_a_failed_start_leaves_no_file(tmp_path):
    code = (
        "from pathlib import Path; from erjepa.checkpoints.lock import FolderLock\n"
        f"held = FolderLock(Path({str(tmp_path)!r}), 'run')\nraise ValueError"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert b"ValueError" in run.stderr and not (tmp_path / LOCK).exists()


def test_the_file_stays_while_another_process_holds_it(tmp_path):
    held = FolderLock(tmp_path, "grid", inherited=True)
    child = subprocess.Popen(["sleep", "20"], pass_fds=[held.fileno()])
    held.release()
    assert lock.is_locked(tmp_path)
    child.kill()
    child.wait()
    FolderLock(tmp_path, "grid").release()
    assert not (tmp_path / LOCK).exists()
