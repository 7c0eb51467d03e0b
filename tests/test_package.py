"""What users install: a complete sdist, its types, its version."""

import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

from torchtune import training, utils

import erjepa

ROOT = Path(__file__).parents[1]


def test_an_sdist_is_whole_and_quiet_to_build(tmp_path):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    tracked = {name for name in listed if (ROOT / name).is_file()} - {".gitignore"}
    for name in tracked:
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    built = subprocess.run(
        [sys.executable, "-c", "import setuptools.build_meta as b; b.build_sdist('.')"],
        cwd=tmp_path / "tree",
        check=True,
        capture_output=True,
        text=True,
    )
    assert "warn" not in (built.stdout + built.stderr).lower()
    (path,) = (tmp_path / "tree").glob("erjepa-*.tar.gz")
    with tarfile.open(path) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert tracked - packed == set()
    assert "erjepa/py.typed" in packed


def test_the_version_is_that_of_the_package():
    assert erjepa.__version__ == version("erjepa")


def test_lines_that_concern_no_user_are_not_logged(caplog):
    with caplog.at_level("INFO"):
        training.set_seed(1)
        training.setup_torch_profiler(enabled=False)
        utils.get_logger("INFO").info("a line of ours")
    assert caplog.messages == ["a line of ours"]
