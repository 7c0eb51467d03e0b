"""Platforms other than Linux: every module imports, and grids are refused."""

import multiprocessing
import os
import pkgutil
import signal
import sys
from importlib import import_module

import pytest

import erjepa
import erjepa_eval
import erjepa_recipe
from erjepa.commands.experiment import main


def import_all():
    """Import every module; yield their names."""
    packages = [erjepa, erjepa_recipe, erjepa_eval]
    for package in [import_module(package.__name__) for package in packages]:
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            import_module(module.name)
            yield module.name


def import_all_on_windows():
    first = list(import_all())  # with all that they need of others
    for name in [n for n in sys.modules if n.split(".")[0].startswith("erjepa")]:
        del sys.modules[name]
    # What Python has on Linux and not on Windows; of what it has, not on macOS, the last.
    for name in ("fcntl", "grp", "pwd", "resource", "termios"):
        sys.modules[name] = None
    for name in (
        *("SIGKILL", "SIGHUP", "SIG_BLOCK"),
        *("setitimer", "pthread_sigmask", "sigwaitinfo"),
    ):
        delattr(signal, name)
    for name in ("fork", "killpg", "register_at_fork", "sysconf", "sched_getaffinity"):
        delattr(os, name)
    sys.platform = "win32"
    assert list(import_all()) == first and len(first) > 100


def test_every_module_is_imported_without_what_windows_lacks():
    forked = multiprocessing.get_context("fork").Process(target=import_all_on_windows)
    forked.start()
    forked.join()
    assert forked.exitcode == 0


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_grids_need_linux(system, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(["run", "tiny_matched_compute", f"output_dir={tmp_path}/out"])
    assert exit.value.code == 2
    assert "error: grids of runs need Linux" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
