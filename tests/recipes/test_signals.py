"""SIGINT and SIGTERM end a run after its step and a save; ranks exit with their launcher."""

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from erjepa.checkpoints import checkpoint
from erjepa.training.run.signals import StopSignals, end_with_launcher
from erjepa_recipe.lora_finetune_distributed_erjepa import (
    FinetuneRecipeERJEPA as Recipe,
)
from tests.harness.ranks import on_ranks
from tests.harness.runs import (
    TUNE,
    assert_same,
    overrides_for,
    read_metrics,
    read_untimed,
    small_config,
    state,
    train,
)

RESUME = "resume_from_checkpoint=True"


SETTINGS = {"model__lora_dropout": 0.1, "stop__steps": 8}


def signal_rank(rank, step, number):
    """Make ``rank`` send itself a signal within its ``step``-th step."""
    original, calls = Recipe._clipped_grad_norm, []
    signal.signal(number, signal.SIG_DFL)  # tests in the background ignore SIGINT

    def told(self, *passes):
        calls.append(None)
        if len(calls) == step and dist.get_rank() == rank:
            os.kill(os.getpid(), number)
        return original(self, *passes)

    Recipe._clipped_grad_norm = told


@pytest.fixture(scope="module")
def uninterrupted(base, data, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("uninterrupted")
    (final, _) = train(small_config(base, data, output_dir, **SETTINGS), 2, state)
    return output_dir, final


@pytest.mark.parametrize(
    ("rank", "number", "step"),
    [(1, signal.SIGINT, 4), (0, signal.SIGTERM, 6)],
    ids=["within an epoch", "in its last step"],
)
def test_ranks_stop_at_one_step_and_the_run_goes_on_as_it_was(
    base, data, tmp_path, uninterrupted, rank, number, step
):
    (whole, expected), part = uninterrupted, tmp_path

    def stopped():
        signal_rank(rank, step, number)
        recipe = Recipe(small_config(base, data, part, **SETTINGS))
        recipe.setup()
        recipe.train()
        return recipe.exit_code, recipe._progress.steps

    assert on_ranks(stopped, 2) == [(128 + number, step)] * 2
    name = "epoch_0" if step == 6 else f"epoch_0_step_{step}"
    assert [p.name for p in checkpoint.resumable_checkpoints(part)] == [name]
    assert len(read_metrics(part)) == step
    (mine, _) = train(small_config(base, data, part, RESUME, **SETTINGS), 2, state)
    assert_same(mine, expected)
    assert read_untimed(part) == read_untimed(whole)


def test_a_signal_before_the_first_step_leaves_nothing_to_go_on_from(
    base, data, tmp_path
):
    def stopped():
        recipe = Recipe(small_config(base, data, tmp_path, **SETTINGS))
        recipe.setup()
        recipe._stop_signals._note(signal.SIGTERM)
        recipe.train()
        with contextlib.redirect_stdout(io.StringIO()) as said:
            recipe._checkpoints.print_resume_command()
        return recipe.exit_code, said.getvalue()

    ((code, said),) = on_ranks(stopped, 1)
    assert code == 143 and "nothing to resume" in said
    assert not checkpoint.checkpoints(tmp_path)


def child(function):
    """Exit status of a forked process that calls ``function``."""
    pid = os.fork()
    if not pid:
        function()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(("seconds", "code"), [(2.0, 0), (0.0, 130)])
def test_a_second_signal_ends_at_once_unless_it_is_the_first_one_again(
    monkeypatch, seconds, code
):
    monkeypatch.setattr("erjepa.training.run.signals._SAME", seconds)

    def twice():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with StopSignals():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    assert child(twice) == code


def test_what_a_job_in_the_background_ignores_it_goes_on_ignoring(monkeypatch):
    def ignored():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(signals.vote())

    assert child(ignored) == 0
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")  # the launcher passed it on
    assert child(ignored) == 1


def test_votes_of_ranks():
    for votes, code in ((0, 0), (3, 130), ((1 << 32) + 2, 143), (1 << 33, 143)):
        (signals := StopSignals()).agree(votes)
        assert signals.exit_code == code


class Run:
    """``tune run`` of a long run, its output read until it trains."""

    def __init__(self, base, data, output_dir, *launcher, **more):
        settings = {**SETTINGS, "epochs": 1000, "stop__steps": "null", **more}
        arguments = overrides_for(base, data, output_dir, **settings)
        command = ["run", *launcher, "erjepa_recipe", "--config", "llama3_2_1b_synth"]
        self.command = ["tune", *command, *arguments]
        self.log = output_dir.with_suffix(".txt")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [TUNE, *self.command[1:]],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        metrics = output_dir / "logs" / "metrics.txt"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2)

    def ranks(self):
        """Processes that the launcher started."""
        listed = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True
        )
        return [int(pid) for pid in listed.stdout.split()]


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_sigterm_of_a_whole_group_of_one_process(base, data, tmp_path):
    """As Slurm sends it: to the workers of the data loader, too."""
    run = Run(base, data, tmp_path / "out", num_workers=1)
    for pid in (*run.ranks(), run.process.pid):  # its workers, and itself
        os.kill(pid, signal.SIGTERM)
    assert run.process.wait(timeout=30) == 143
    (newest,) = checkpoint.resumable_checkpoints(tmp_path / "out")
    steps = checkpoint.load_progress(newest)["steps"]
    assert len(read_metrics(tmp_path / "out")) == steps
    said = run.log.read_text()
    command = said.splitlines()[-1].strip()
    assert shlex.split(command) == [*run.command, RESUME]
    assert said.count(RESUME) == 1 and f"Stopped after step {steps}." in said


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells of processes")
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_rank_whose_launcher_went_first_ends(tmp_path, is_wrapped):
    """Killed while the rank was still importing: there is no death left to be told of. A shell
    around the rank, in its session, is none that went.
    """
    said = tmp_path / "said"
    rank = (
        "import time; time.sleep(1)\n"
        "from erjepa.training.run.signals import end_with_launcher\n"
        "end_with_launcher()\n"
        f"open({str(said)!r}, 'w')"
    )
    wait = "; wait" * is_wrapped
    script = f"{sys.executable} -c {shlex.quote(rank)} & echo $!{wait}"
    launcher = subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, "TORCHELASTIC_RUN_ID": "x"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as torchrun starts ranks
    )
    pid = int(launcher.stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert said.exists() == is_wrapped


def test_a_rank_ends_with_its_launcher(monkeypatch):
    read, write = os.pipe()

    def launcher():
        if not os.fork():
            end_with_launcher()
            os.write(write, b"1")
            time.sleep(30)
            os.write(write, b"2")
            os._exit(0)
        os.read(read, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    assert child(launcher) == -signal.SIGKILL
    os.close(write)
    start = time.monotonic()
    assert os.read(read, 1) == b"", "the last writer is gone"
    assert time.monotonic() - start < 5


@pytest.mark.slow
def test_two_ranks_end_with_their_launcher(base, data, tmp_path):
    run = Run(base, data, tmp_path / "out", "--nproc_per_node", "2")
    ranks = run.ranks()
    assert len(ranks) == 2
    run.process.kill()
    wait_for(lambda: not any(map(lives, ranks)), seconds=5)
    run.process.wait()


@pytest.mark.slow
def test_sigint_to_the_launcher_of_two_ranks(base, data, tmp_path):
    out = tmp_path / "out"
    run = Run(base, data, out, "--nproc_per_node", "2")
    ranks = run.ranks()
    assert len(ranks) == 2
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(timeout=30) != 0
    assert not any(map(lives, ranks))
    said = run.log.read_text()
    (command,) = [line for line in said.splitlines() if line.endswith(RESUME)]
    assert shlex.split(command) == [*run.command, RESUME]
    saved = checkpoint.load_progress(checkpoint.latest(out))["steps"]
    assert f"Stopped after step {saved}." in said
