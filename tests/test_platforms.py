"""Platforms other than Linux: every module imports, and processes may be spawned."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from erjepa.commands.experiment import main
from erjepa.training.run.prepared import PreparedRun
from erjepa.training.run.steps import TrainingPairs
from tests.harness.runs import make_config, overrides_for

IMPORT_ALL = """
import os, pkgutil, signal, sys
from importlib import import_module
import erjepa, erjepa_configs, erjepa_eval, erjepa_recipe

def import_all():
    for package in (erjepa, erjepa_recipe, erjepa_eval):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            import_module(module.name)
            yield module.name

first = list(import_all())  # with all that they need of others
for name in [n for n in sys.modules if n.split(".")[0].startswith("erjepa")]:
    del sys.modules[name]
import erjepa, erjepa_eval, erjepa_recipe
# What Python has on Linux and not on Windows; of what it has, not on macOS, the last.
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in "SIGKILL SIGHUP setitimer pthread_sigmask sigwaitinfo SIG_BLOCK".split():
    delattr(signal, name)
for name in "fork killpg register_at_fork sysconf sched_getaffinity".split():
    delattr(os, name)
sys.platform = sys.argv[1]
assert list(import_all()) == first
print(len(first))
"""


def test_every_module_is_imported_without_what_windows_lacks():
    command = [sys.executable, "-W", "ignore", "-c", IMPORT_ALL, "win32"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) > 100


@pytest.mark.slow
def test_processes_that_pack_may_be_spawned(base, data, monkeypatch):
    """As on macOS and Windows, where there is no fork, or none that is safe."""
    overrides = overrides_for(base, data, "unused")
    cfg = make_config([o for o in overrides if "output_dir" not in o])
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    run = PreparedRun(cfg, torch.device("cpu"))
    packed = {}
    for context in ("spawn", None):
        run.cfg = replace(cfg, num_workers=int(context is not None))
        loader = TrainingPairs(run).loader()
        if context is not None:
            loader.multiprocessing_context = context
        packed[context] = [batch.tokens.tolist() for step in loader for batch in step]
    assert packed["spawn"] == packed[None] and len(packed[None]) == 11


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_grids_need_linux(system, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(["run", "tiny_matched_compute", f"output_dir={tmp_path}/out"])
    assert exit.value.code == 2
    assert "error: grids of runs need Linux" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
