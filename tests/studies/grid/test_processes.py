"""A process that ends as its grid stops was stopped; any other that fails has failed."""

import threading

import pytest

from erjepa.studies.grid import processes
from erjepa.studies.grid.processes import Runner, Stopped, failure_in


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a line of shell in place of ``tune``, in a grid that stops at ``stopping``."""
    monkeypatch.setattr(processes, "tune", lambda: ["sh", "-c"])

    def run(line, stopping):
        with (tmp_path / "lock").open("w") as lock:
            runner = Runner({}, print, stopping)
            return runner.run(["tune", line], tmp_path / "log", lock.fileno())

    return run


def test_killed_together_with_its_grid(run, monkeypatch):
    """Slurm signals all processes of a task: the one that runs may end first."""
    monkeypatch.setattr(processes, "_POLL", 1.0)  # both happen between two polls
    stopping = []
    timer = threading.Timer(0.2, stopping.append, ["SIGTERM"])
    timer.start()
    with pytest.raises(Stopped):
        run("kill -TERM $$", stopping)
    timer.join()


def test_the_warning_of_slurm_ends_no_run(run):
    """Slurm may send it to all processes of a task, which itself ends them."""
    assert run("kill -USR2 $$; exit 5", []) == 5


@pytest.mark.parametrize(("line", "code"), [("exit 3", 3), ("kill -TERM $$", -15)])
def test_failed_by_itself(run, line, code):
    assert run(line, []) == code


RANKS_FAILED = """$ tune run erjepa_recipe
ValueError: of an earlier attempt
$ tune run --nproc_per_node 2 erjepa_recipe
{above}
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=====
erjepa_recipe FAILED
Root Cause (first observed failure):
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 7)
  traceback : {below}
=====
"""


@pytest.mark.parametrize(
    ("above", "below", "reason"),
    [
        ("[rank1]: KeyError: 'a'", "To enable traceback see: x", "KeyError: 'a'"),
        (
            "[rank1]: KeyError: 'a'\n[rank0]: RuntimeError: Connection closed by peer",
            "To enable traceback see: x",
            "KeyError: 'a'",
        ),
        (
            "x (ConnectionError: no network). Goes on.",
            "To enable traceback see: x",
            "=====",
        ),
        ("", "erjepa_recipe: error: no data", "erjepa_recipe: error: no data"),
        ("", "To enable traceback see: x", "====="),
    ],
)
def test_the_error_above_the_table_of_torchrun(tmp_path, above, below, reason):
    log = tmp_path / "run.log"
    log.write_text(RANKS_FAILED.format(above=above, below=below))
    assert failure_in(log).splitlines()[0] == reason
