"""Submitting a grid to Slurm, with stand-ins for Slurm's commands."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from erjepa.checkpoints.lock import FolderLock
from erjepa.commands.experiment import main
from erjepa.studies.experiment import read_record
from erjepa.studies.grid import output, slurm
from erjepa.studies.grid.local import environments
from tests.harness.grids import EXPECTED, calls, experiment, run, summary, wait_for

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

    (fake_slurm / "queue").write_text("41_1|PENDING|Resources\n41_3|RUNNING|None\n")
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


def test_tasks_that_are_ending_are_waited_for(fake, fake_slurm, capsys, monkeypatch):
    """They are cancelled, and their cells submitted again unless Slurm queues them again."""
    submit(fake)
    queue = fake_slurm / "queue"
    queue.write_text("41_0|COMPLETING|None\n41_1|COMPLETING|None\n42|PENDING|None\n")
    assert main(["cancel", str(fake / "out")]) == 0
    assert "Cancelled 1 job." in capsys.readouterr().out
    assert (fake_slurm / "cancelled").read_text() == "--quiet 41_0 41_1 42\n"
    later = ["41_0|COMPLETING|None\n", "41_1|PENDING|BeginTime\n"]
    monkeypatch.setattr(
        time, "sleep", lambda _: later and queue.write_text(later.pop(0))
    )
    assert submit(fake) == 0
    assert "Submitted 5 cells" in capsys.readouterr().out
    before = {"synth/er-jepa/seed_1": "41_1"}
    assert not later and jobs(fake).items() >= before.items()


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


def task(folder, cell):
    """A process that runs a cell as a task of Slurm, which would queue it again on SIGUSR2."""

    def queue_again(number, frame):
        (folder / "queued_again").touch()

    def work():
        signal.signal(signal.SIGUSR2, queue_again)
        slurm.CellTask(folder / "out", cell)()

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def test_tasks_have_the_output_of_a_local_grid(fake, fake_slurm, capsys):
    assert run(fake) == 0
    out, expected = fake / "out", (fake / "out" / "results.jsonl").read_text()
    shutil.rmtree(out)
    submit(fake)
    cells = list(jobs(fake))
    matched = [cell for cell in cells if "matched" in cell]
    early = task(fake, matched[0])
    early.join()
    assert early.exitcode == 1
    needs = "failed: it needs the tokens of synth/er-jepa/seed_1"
    assert status(fake, capsys)[matched[0]] == needs
    for group in [c for c in reversed(cells) if c not in matched], matched:
        tasks = [task(fake, cell) for cell in group]
        for process in tasks:
            process.join()
            assert process.exitcode == 0
    assert (out / "results.jsonl").read_text() == expected
    told = len(calls(fake))
    again = task(fake, cells[0])
    again.join()
    assert again.exitcode == 0 and len(calls(fake)) == told


def test_a_task_that_has_to_stop(fake, fake_slurm, capsys, monkeypatch):
    """It ends its run and waits for Slurm to end it; the next one resumes the cell."""
    submit(fake)
    cell = "synth/llm-jepa/seed_1"
    (fake_slurm / "queue").write_text("41_0|RUNNING|None\n")
    assert status(fake, capsys)[cell] == "waiting, job 41_0: starting"
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.5")
    first = task(fake, cell)
    wait_for(lambda: len(calls(fake)) > 2)
    assert status(fake, capsys)[cell].startswith("running on ")
    assert ", job 41_0, since " in status(fake, capsys)[cell]
    second = task(fake, cell)
    second.join()
    assert second.exitcode == 1, "another process runs the cell"
    os.kill(first.pid, signal.SIGUSR2)
    wait_for((fake / "queued_again").exists)
    told = len(calls(fake))
    time.sleep(1)
    assert first.is_alive() and len(calls(fake)) == told
    (fake_slurm / "queue").unlink()
    assert status(fake, capsys)[cell].startswith("stopped; run again to resume; ")
    first.kill()
    monkeypatch.delenv("FAKE_STEP_SECONDS")
    again = task(fake, cell)
    again.join()
    assert again.exitcode == 0
    steps = [call for call in calls(fake) if call.startswith("step")]
    assert len(steps) in (8, 9), "it went on from its checkpoint"
    assert status(fake, capsys)[cell] == "done, accuracy 8.1% at the end"


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
    whole = (out / "results.jsonl").read_text()
    cells = slurm.cells(read_record(out).config)
    late = out / "cells" / cells[0].name / "results.jsonl"
    late.rename(late.with_name("aside"))
    (out / "results.jsonl").unlink()
    write = output.write_whole

    def write_while_another_ends(path: Path, text: str) -> None:
        if not late.exists():
            late.with_name("aside").rename(late)
        write(path, text)

    monkeypatch.setattr(output, "write_whole", write_while_another_ends)
    assert len(output.gather_results(out, cells)) == 6
    assert (out / "results.jsonl").read_text() == whole
    assert summary(fake) == EXPECTED


def test_where_the_cells_of_a_local_grid_are(fake, fake_slurm, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_FAILURE", "erjepa_recipe er-jepa/seed_1")
    assert run(fake, "seeds=[1]") == 1
    cell, matched = "synth/er-jepa/seed_1", "synth/matched/seed_1"
    states = status(fake, capsys)
    assert states["synth/llm-jepa/seed_1"] == "done, accuracy 8.1% at the end"
    assert states[cell] == "failed: exit code 3: loss is not?[31m finite?"
    assert states[matched] == f"failed: it needs the tokens of {cell}"
    with (fake / "out" / "cells" / matched / "run.log").open("a") as log:
        log.write("$ tune run erjepa_recipe\n")
    lock = FolderLock(fake / "out" / "locks" / matched, "process")
    running = status(fake, capsys)[matched]
    assert running.startswith("running on ") and f"process {os.getpid()}" in running
    lock.release()
    assert status(fake, capsys)[matched].startswith("stopped; run again to resume; ")
    with pytest.raises(SystemExit):
        main(["status", str(fake / "nowhere")])
    assert "is not the output of an experiment" in capsys.readouterr().err
