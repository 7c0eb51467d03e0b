"""After one of several launchers is killed, torchrun restarts the group and the run resumes.

A group that lost a launcher, or a rank, logs the losses of an uninterrupted run.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from erjepa.checkpoints import checkpoint
from erjepa.configs import load
from erjepa.studies.training_log import read_training_log
from erjepa.training.run.start import is_to_resume
from tests.harness.ranks import free_port, on_ranks
from tests.harness.runs import make_config, overrides_for, start_tune, train

NAMES = ("loss", "grad_norm", "replay_lm_loss", "memory_size", "total_tokens")


def test_auto_goes_on_where_there_is_a_checkpoint(tmp_path):
    cfg = load("tiny_synth", [f"output_dir={tmp_path}", "resume_from_checkpoint=auto"])
    (tmp_path / "flops_0").mkdir()  # weights alone

    def decided():
        return on_ranks(lambda: is_to_resume(cfg), 2)

    assert decided() == [False, False]
    (tmp_path / "epoch_0").mkdir()
    (tmp_path / "epoch_0" / checkpoint.RECIPE_STATE).touch()
    assert decided() == [True, True]
    for given in (True, False):
        assert is_to_resume(replace(cfg, resume_from_checkpoint=given)) is given


def settings(base, data, folder):
    keys = {"batch_size": 4, "epochs": 3, "save_every_n_steps": 2}
    return overrides_for(base, data, folder / "out", **keys)


def launchers(base, data, folder):
    """Starts a launcher of one rank, by the same command for each node and each time."""
    endpoint = f"127.0.0.1:{free_port()}"
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    options = ["--nnodes", 2, "--nproc_per_node", 1, "--rdzv-id", "restart"]
    keys = [*settings(base, data, folder), "resume_from_checkpoint=auto"]

    def one():
        return start_tune(
            *[*options, *rendezvous, "--max-restarts", 3, "erjepa_recipe"],
            *["--config", "llama3_2_1b_synth", *keys],
            cwd=folder,
        )

    return one


def wait_for_checkpoint(folder, processes):
    deadline = time.monotonic() + 900
    while not checkpoint.resumable_checkpoints(folder / "out"):
        assert time.monotonic() < deadline, "no checkpoint"
        assert all(p.poll() is None for p in processes), processes[0].stdout.read()
        time.sleep(0.05)


def logged(folder):
    """Steps and what they logged; of a step that was taken twice, the last time."""
    (path,) = (folder / "out" / "logs").glob("*.txt")
    steps = read_training_log(path)
    return {i: [step[name] for name in NAMES] for i, step in steps.items()}


def children(process):
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(child) for child in listed.split()]


@pytest.fixture(scope="module")
def unbroken(base, data, tmp_path_factory):
    """What two ranks log that nothing happens to."""
    folder = tmp_path_factory.mktemp("unbroken")
    train(make_config(settings(base, data, folder)), 2)
    return logged(folder)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["launcher", "rank"])
def test_a_group_that_loses(unbroken, base, data, tmp_path, what, monkeypatch):
    # Else a launcher that goes on does not tell a new one the store that they share.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    one = launchers(base, data, tmp_path)
    first = one()  # has the store of the rendezvous
    time.sleep(5)
    nodes = [first, one()]
    wait_for_checkpoint(tmp_path, nodes)
    if what == "launcher":
        os.kill(nodes[1].pid, signal.SIGKILL)
        nodes[1].wait()
        nodes[1] = one()  # as whoever looks after the nodes does
    else:
        os.kill(children(nodes[1])[0], signal.SIGKILL)
    saved = len(checkpoint.checkpoints(tmp_path / "out"))
    outputs = [process.communicate(timeout=1500)[0] for process in nodes]
    ends = "\n".join(output[-4000:] for output in outputs)
    assert [process.returncode for process in nodes] == [0, 0], ends
    assert saved < 9, "there was nothing left to do"
    assert logged(tmp_path) == unbroken and len(unbroken) == 3 * 6
