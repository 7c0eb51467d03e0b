"""A grid on a real one-node Slurm, killed in every way, has the output of a local grid."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path

import pytest

from erjepa.checkpoints.lock import holder_of
from tests.harness.grids import (
    FAKE_TUNE,
    untimed_results,
    write_experiment,
    write_small_experiment,
)
from tests.harness.ranks import free_port

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") is None
        or os.geteuid() != 0,
        reason="needs Debian's slurm-wlm and munge, and root",
    ),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm of this machine, for this process and those it starts."""
    folder = tmp_path_factory.mktemp("slurm")
    script = Path(__file__).parent / "one_node_slurm.sh"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        subprocess.run(["bash", script, "start", folder, str(free_port())], check=True)
        yield folder
        subprocess.run(["scancel", "--user=root"], check=False)
        time.sleep(1)
        subprocess.run(["bash", script, "stop", folder], check=False)


@pytest.fixture
def fake_python(tmp_path):
    """A Python whose ``tune`` is the stand-in."""
    here = Path(sys.prefix)
    there = tmp_path / "venv"
    (there / "bin").mkdir(parents=True)
    if (here / "pyvenv.cfg").exists():
        shutil.copy(here / "pyvenv.cfg", there)
    (there / "lib").symlink_to(here / "lib")
    (there / "bin" / "python").symlink_to(sys.executable)
    tune = there / "bin" / "tune"
    tune.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE_TUNE} "$@"\n')
    tune.chmod(0o755)
    code = "import erjepa, sys; print(sys.executable)"
    printed = subprocess.run(
        [there / "bin" / "python", "-c", code], capture_output=True, text=True
    ).stdout
    assert printed.strip() == str(there / "bin" / "python"), sysconfig.get_paths()
    return str(there / "bin" / "python")


class Grid:
    """``erjepa experiment`` of one experiment, under Slurm or here."""

    def __init__(self, path, python=sys.executable, **environment):
        self.path, self.python = path, python
        self.out = path.parent / "out"
        self.environment = {
            **{**os.environ, "OMP_NUM_THREADS": "1"},
            **{"FAKE_CALLS": str(path.parent / "calls.txt"), **environment},
        }

    def call(self, *arguments):
        command = [self.python, "-m", "erjepa", "experiment", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submit(self):
        asked = ["launcher=slurm", "slurm.partition=main", "slurm.time=60"]
        return self.call("run", self.path, *asked, "slurm.signal_delay_s=60")

    def status(self):
        lines = self.call("status", self.out).splitlines()
        return dict(line.split(": ", 1) for line in lines)

    def running(self, but=0):
        """Process and job of a cell that runs, not in process ``but``, and has a checkpoint."""
        found = []

        def look():
            jobs = json.loads((self.out / "slurm" / "jobs.json").read_text())
            for path in self.out.glob("locks/*/*/*"):
                cell, holder = path.relative_to(self.out / "locks"), holder_of(path)
                saved = list((self.out / "cells" / cell).glob("epoch_*"))
                if holder and lives(holder.pid) and holder.pid != but and saved:
                    found.append({"pid": holder.pid, "job": jobs[str(cell)]})
            return found

        wait_for(look, "a cell that runs")
        return found[-1]

    def wait_for_all(self):
        def none_is_queued():
            squeue = ["squeue", "--noheader"]
            return not subprocess.run(squeue, capture_output=True, text=True).stdout

        wait_for(none_is_queued, "the end of the queue")


def wait_for(condition, what, seconds=1800):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def lives(pid):
    return Path(f"/proc/{pid}").exists()


def killed_in_every_way(grid):
    """Submit a grid, end tasks of it by each means there is, all at last, and submit it again."""
    assert "Submitted 6 cells" in grid.submit()
    for command in (
        "scancel --signal=USR2 {job}",  # as Slurm does when its time is up
        "kill -KILL {pid}",
        "scontrol requeue {job}",
        "scancel {job}",
    ):
        task = grid.running()
        # scancel complains of a job that is queued again while it still asks.
        subprocess.run(command.format(**task).split(), check=False)
        wait_for(lambda task=task: not lives(task["pid"]), f"the end after {command}")
    assert "Submitted " in grid.submit(), "of which none runs twice"
    grid.running()
    grid.call("cancel", grid.out)
    grid.wait_for_all()
    states = grid.status().values()
    assert any(state.startswith("stopped") for state in states), states
    assert not any(state.startswith(("running", "waiting")) for state in states), states
    grid.submit()
    grid.wait_for_all()
    assert all(s.startswith("done") for s in grid.status().values()), grid.status()


def test_as_a_local_grid_with_the_stand_in(slurm, fake_python, tmp_path):
    """Byte for byte, and no step is taken twice."""
    for name in ("local", "cluster"):
        (tmp_path / name).mkdir()
        write_experiment(tmp_path / name)
    local = Grid(tmp_path / "local" / "fake.yaml", fake_python)
    local.call("run", local.path)
    cluster = Grid(
        tmp_path / "cluster" / "fake.yaml", fake_python, FAKE_STEP_SECONDS="4"
    )
    killed_in_every_way(cluster)
    mine, expected = ((g.out / "results.jsonl").read_text() for g in (cluster, local))
    assert mine == expected
    steps = (tmp_path / "cluster" / "calls.txt").read_text().count("step ")
    taken = (tmp_path / "local" / "calls.txt").read_text().count("step ")
    assert taken <= steps <= taken + 7, "a step that was under way, at each end"


def test_as_a_local_grid(slurm, base, data, tmp_path):
    """The recipe itself: the same lines but for times, in the same order, and predictions."""
    methods = {
        "Token-matched": {"replay.weight": 0, "stop.tokens_of": "ER-JEPA"},
        "LLM-JEPA": {"replay.weight": 0},
        "ER-JEPA": {"replay.selection": "uniform"},
    }
    grids = []
    for name in ("local", "cluster"):
        (tmp_path / name).mkdir()
        keys = {"budgets": [2e9, 4e9, 6e9], "seeds": [1, 2]}
        path = write_small_experiment(tmp_path / name, base, data, methods, **keys)
        path.write_text(path.read_text().replace("epochs: 4", "epochs: 60"))
        grids.append(Grid(path))
    local, cluster = grids
    local.call("run", local.path)
    killed_in_every_way(cluster)

    lines = untimed_results(tmp_path / "local")
    assert untimed_results(tmp_path / "cluster") == lines
    counts = Counter((line["method"], line["seed"]) for line in lines)
    # Each at three budgets, and one at the tokens of ER-JEPA too.
    of_each = {"LLM-JEPA": 3, "ER-JEPA": 3, "Token-matched": 4}
    assert counts == {(m, seed): n for m, n in of_each.items() for seed in (1, 2)}
    for line in lines:
        mine, expected = (g.out / line["predictions"] for g in (cluster, local))
        assert mine.read_bytes() == expected.read_bytes()
    assert not list(cluster.out.glob("cells/*/*/*/*/recipe_state*"))


@pytest.mark.parametrize(
    "command",
    {
        "preempted": "srun --partition=urgent --exclusive sleep 1",
        "out_of_time": "scancel --signal=USR2 {job}",
        "requeued": "scontrol requeue {job}",
    }.values(),
)
def test_a_task_goes_on_by_itself(slurm, fake_python, tmp_path, command):
    """By Slurm, which lets some minutes pass, or by submitit, which asks Slurm."""
    write_experiment(tmp_path)
    grid = Grid(tmp_path / "fake.yaml", fake_python, FAKE_STEP_SECONDS="4")
    methods = "methods={LLM-JEPA: {replay.weight: 0}}"
    asked = ["launcher=slurm", "slurm.partition=main", methods, "seeds=[1]"]
    grid.call("run", grid.path, *asked)
    first = grid.running()
    subprocess.run(command.format(**first).split(), check=False, timeout=120)
    second = grid.running(but=first["pid"])
    assert second["job"] == first["job"]
    grid.wait_for_all()
    assert list(grid.status().values()) == ["done, accuracy 8.1% at the end"]
    steps = (tmp_path / "calls.txt").read_text().count("step ")
    assert 8 <= steps <= 9, "it went on from its checkpoint"
