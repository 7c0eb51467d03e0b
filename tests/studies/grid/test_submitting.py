"""Submitting a grid to Slurm, with stand-ins for Slurm's commands."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from erjepa.checkpoints.lock import FolderLock
from erjepa.commands.experiment import main
from erjepa.studies.experiment import read_record
from erjepa.studies.grid import attempts, slurm
from erjepa.studies.grid.attempts import Claim, last_attempt
from erjepa.studies.grid.running import environments
from erjepa.utils.jsonl import to_jsonl
from tests.harness.grids import EXPECTED, experiment, results, run, summary

COMMANDS = {
    # The Nth call fails where `refuse` says N.
    "sbatch": """
        cat "$1" >>"$FAKE_SLURM/scripts"; echo x >>"$FAKE_SLURM/calls"
        n=$(wc -l <"$FAKE_SLURM/calls")
        if [ -f "$FAKE_SLURM/refuse" ] && [ "$n" = "$(cat "$FAKE_SLURM/refuse")" ]; then
          echo "sbatch: error: invalid partition specified: nowhere" >&2
          echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2
          exit 1
        fi
        echo "Submitted batch job $((40 + n))" """,
    "squeue": '[ -f "$FAKE_SLURM/queue" ] && cat "$FAKE_SLURM/queue"; exit 0',
    "scancel": 'echo "$@" >>"$FAKE_SLURM/cancelled"',
    "srun": "exit 1",
}


@pytest.fixture
def fake_slurm(tmp_path, monkeypatch):
    folder = tmp_path / "slurm_commands"
    folder.mkdir()
    for name, script in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    return folder


def submit(folder, *arguments):
    pytest.importorskip("submitit")
    return run(folder, "launcher=slurm", *arguments)


def jobs(folder):
    return json.loads((folder / "out" / "slurm" / "jobs.json").read_text())


def status(folder, capsys):
    capsys.readouterr()
    assert main(["status", str(folder / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_an_array_and_jobs_that_wait(fake, fake_slurm, capsys):
    keys = ("partition=main", "gpus_per_node=4", "time=30", "qos=low")
    assert submit(fake, *(f"slurm.{key}" for key in keys)) == 0
    assert "Submitted 6 cells" in capsys.readouterr().out
    array, *others = (fake_slurm / "scripts").read_text().split("#!/bin/bash")[1:]
    assert "--array=0-3%4" in array and "--dependency" not in array
    asked = ("partition=main", "gpus-per-node=4", "time=30", "qos=low", "requeue")
    for script in (array, *others):
        assert all(f"#SBATCH --{key}\n" in script for key in asked), script
    cells = [f"synth/{m}/seed_{s}" for s in (1, 2) for m in ("llm-jepa", "er-jepa")]
    expected = {cell: f"41_{i}" for i, cell in enumerate(cells)}
    expected |= {"synth/matched/seed_1": "42", "synth/matched/seed_2": "43"}
    assert jobs(fake) == expected
    assert ["afterany:41_1" in script for script in others] == [True, False]
    assert ["afterany:41_3" in script for script in others] == [False, True]

    (fake_slurm / "queue").write_text("41_1|PENDING||Resources\n41_3|RUNNING|n7|None\n")
    states = status(fake, capsys)
    assert states["synth/er-jepa/seed_1"] == "waiting, job 41_1: Resources"
    assert states["synth/er-jepa/seed_2"] == "waiting, job 41_3: starting"
    assert states["synth/matched/seed_1"] == "stopped, job 42 never started"
    (fake_slurm / "scripts").unlink()
    assert submit(fake) == 0
    assert "Submitted 4 cells" in capsys.readouterr().out
    array, *others = (fake_slurm / "scripts").read_text().split("#!/bin/bash")[1:]
    assert "--array=0-1%2" in array and len(others) == 2
    assert "afterany:41_1" in others[0], "of the first submission, still queued"
    assert jobs(fake)["synth/er-jepa/seed_1"] == "41_1"

    assert main(["cancel", str(fake / "out")]) == 0
    assert (fake_slurm / "cancelled").read_text() == "--quiet 41_1 41_3\n"


def test_devices_are_those_of_a_grid_of_one_machine(fake, fake_slurm):
    """A packaged experiment that shares devices out is submitted as it is."""
    assert submit(fake, "devices=[0,1]", "nproc_per_node=3") == 0
    assert len(jobs(fake)) == 6


def test_a_damaged_list_of_jobs_is_named(fake, fake_slurm, capsys):
    submit(fake)
    (fake / "out" / "slurm" / "jobs.json").write_text('{"a": "--me"}\n')
    with pytest.raises(SystemExit):
        main(["cancel", str(fake / "out")])
    assert "jobs.json: a: string should match" in capsys.readouterr().err


def refused(folder, capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        submit(folder, *arguments)
    assert left.value.code == 2
    return capsys.readouterr().err


def test_refusals_leave_nothing_half_submitted(fake, fake_slurm, capsys):
    (fake_slurm / "refuse").write_text("1")
    said = refused(fake, capsys, "slurm.partition=nowhere")
    assert "Invalid partition name specified. Nothing was submitted." in said
    assert not (fake / "out" / "slurm" / "jobs.json").exists()
    (fake_slurm / "refuse").write_text("3")
    assert "Nothing was submitted" in refused(fake, capsys)
    cancelled = (fake_slurm / "cancelled").read_text().split()
    assert cancelled == ["--quiet", *(f"42_{i}" for i in range(4))]
    assert not (fake / "out" / "slurm" / "jobs.json").exists()


def test_a_disk_that_is_full_leaves_nothing_submitted(
    fake, fake_slurm, capsys, monkeypatch
):
    def write(path, text, *writer):
        if path.name == "jobs.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(slurm, "write_whole", write)
    assert "No space left on device" in refused(fake, capsys)
    cancelled = (fake_slurm / "cancelled").read_text().split()
    assert cancelled == ["--quiet", *(f"41_{i}" for i in range(4)), "42", "43"]


def test_what_makes_no_sense(fake, fake_slurm, capsys, monkeypatch):
    for argument, expected in {
        "slurm.partiton=main": "unknown config key slurm.partiton. Did you mean slurm.partition?",
        "slurm.time=soon": 'slurm: time: input should be a valid integer, got "soon"',
        "launcher=pbs": "launcher: input should be 'local' or 'slurm'",
    }.items():
        assert expected in refused(fake, capsys, argument)
    (fake / "file").touch()
    assert "Not a directory" in refused(fake, capsys, f"output_dir={fake}/file/out")
    lock = FolderLock(fake / "out", "grid")
    assert "a grid of launcher=local is running" in refused(fake, capsys)
    lock.release()
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no sbatch here" in refused(fake, capsys)
    assert not (fake_slurm / "scripts").exists()


def test_a_cell_has_one_task(tmp_path, fake_slurm):
    queue = fake_slurm / "queue"
    queue.write_text("7_0|RUNNING|n1|None\n")
    claim = Claim(tmp_path, "cell", "7_0")
    with pytest.raises(BlockingIOError, match="cell is run by job 7_0 on"):
        Claim(tmp_path, "cell", "8_0")
    again = Claim(tmp_path, "cell", "7_0")  # Slurm started it anew
    with pytest.raises(BlockingIOError):
        Claim(tmp_path, "cell", None)
    again.end("out of memory")
    assert last_attempt(tmp_path, "cell").failure == "out of memory"
    Claim(tmp_path, "cell", "8_0")
    queue.write_text("8_0|PENDING||Resources\n")  # killed, and waits to go on
    Claim(tmp_path, "cell", "9").end()
    assert last_attempt(tmp_path, "cell").job == "9"
    del claim


def test_of_many_that_start_at_once_one_runs(tmp_path, monkeypatch):
    """All of them find that nobody runs the cell, then try to."""
    together = threading.Barrier(8)
    newest = attempts._newest

    def wait(folder):
        found = newest(folder)
        together.wait()
        return found

    monkeypatch.setattr(attempts, "_newest", wait)
    monkeypatch.setattr(attempts.os, "getpid", threading.get_ident)
    won = []

    def claim(job):
        try:
            Claim(tmp_path, "cell", job)
            won.append(job)
        except BlockingIOError as error:
            assert "cell is run by job" in str(error)

    threads = [threading.Thread(target=claim, args=(str(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert len(won) == 1
    assert [last_attempt(tmp_path, "cell").job] == won
    assert [p.name for p in (tmp_path / "attempts" / "cell").iterdir()] == ["1.json"]


def test_threads_are_those_of_a_local_grid_where_they_are_asked_for(monkeypatch):
    """Sums depend on them, and results are to be the same bit for bit."""
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    two = experiment(nproc_per_node=2)
    assert slurm._threads(two) == "3" == environments(two)[0]["OMP_NUM_THREADS"]
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert slurm._threads(two) == "4"


def test_results_of_tasks_that_end_at_once(fake, monkeypatch):
    """One that looked before the other had written sees it when it looks again."""
    assert run(fake) == 0
    out = fake / "out"
    whole, lines = (out / "results.jsonl").read_text(), results(fake)
    experiment = read_record(out).config
    cells = [cell.name for cell in slurm.cells(experiment)]
    (out / "results.jsonl").unlink()

    def own(cell):
        rows = to_jsonl(line for line in lines if line["cell"] == cell)
        (out / "cells" / cell / "results.jsonl").write_text(rows)

    for cell in reversed(cells[1:]):
        own(cell)
    write = slurm.write_whole

    def write_while_another_ends(path: Path, text: str, writer: str) -> None:
        own(cells[0])
        write(path, text, writer)

    monkeypatch.setattr(slurm, "write_whole", write_while_another_ends)
    slurm.gather_results(out, experiment)
    assert (out / "results.jsonl").read_text() == whole
    assert summary(fake) == EXPECTED


def test_where_the_cells_of_a_local_grid_are(fake, fake_slurm, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_recipe er-jepa/seed_1")
    assert run(fake, "seeds=[1]") == 1
    cell, matched = "synth/er-jepa/seed_1", "synth/matched/seed_1"
    states = status(fake, capsys)
    assert states["synth/llm-jepa/seed_1"] == "done, accuracy 8.1% at the end"
    log = fake / "out" / "cells" / cell / "run.log"
    assert states[cell] == f"failed: exit code 3; {log} ends with"
    assert states[matched] == "waiting"
    lock = FolderLock(fake / "out", "grid")
    Claim(fake / "out", matched, None)
    running = status(fake, capsys)[matched]
    assert running.startswith("running on ") and f"process {os.getpid()}" in running
    lock.release()
    assert status(fake, capsys)[matched].startswith("stopped; run again to resume; ")
    with pytest.raises(SystemExit):
        main(["status", str(fake / "nowhere")])
    assert "is not the output of an experiment" in capsys.readouterr().err
