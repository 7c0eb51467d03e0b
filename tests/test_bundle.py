"""A bundle: its contents, its parts, and what its installer refuses."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
# A Python whose pip resolves three packages and downloads what it is told to.
PIP = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
if sys.argv[1] == "-":
    code, sys.argv = sys.stdin.read(), sys.argv[1:]
    exec(code)
elif sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    at = lambda option: Path(sys.argv[sys.argv.index(option) + 1])
    tags = [a.partition("=")[2] for a in sys.argv if a.startswith("--platform=")]
    match sys.argv[3]:
        case "wheel":
            assert (at("--wheel-dir").parent / "project" / "pyproject.toml").is_file()
            at("--wheel-dir").mkdir()
            (at("--wheel-dir") / "erjepa-1-py3-none-any.whl").touch()
        case "install":
            names = "erjepa", "torch", "Typing_Extensions"
            found = [{{"metadata": {{"name": n, "version": "1"}}}} for n in names]
            at("--report").write_text(json.dumps({{"install": found}}))
        case "download":
            asked = at("-r").read_text().split()
            (at("--dest") / "asked").write_text(json.dumps([asked, tags]))
"""


@pytest.fixture
def bundle(tmp_path):
    """Makes a bundle in ``tmp_path/bundle`` with a pip that needs no network."""
    (tmp_path / "python").write_text(PIP)
    (tmp_path / "python").chmod(0o755)

    def bundle(*paths, **settings):
        command = ["bash", SCRIPTS / "bundle.sh", tmp_path / "bundle", *paths]
        return subprocess.run(
            command,
            env={**os.environ, "PYTHON": str(tmp_path / "python"), **settings},
            capture_output=True,
            text=True,
        )

    return bundle


def test_a_bundle(bundle, tmp_path):
    content, folder = tmp_path / "content", tmp_path / "bundle"
    (content / "deep").mkdir(parents=True)
    (tmp_path / "blob").write_bytes(os.urandom(70_000))
    (content / "deep" / "a").symlink_to(tmp_path / "blob")  # as in a cache of the hub
    (content / "b").write_bytes(b"b" * 5)
    made = bundle(
        content,
        PART_SIZE="1MiB",
        PLATFORM="manylinux_2_18_aarch64",
        WITHOUT="torch|nvidia-.*",
    )
    assert made.returncode == 0, made.stderr
    parts = sorted(folder.glob("part_*"))
    sizes = [part.stat().st_size for part in parts]
    assert set(sizes[:-1]) == {1 << 20} and 0 < sizes[-1] <= 1 << 20
    assert (folder / "SHA256SUMS").read_text().splitlines() == [
        f"{hashlib.sha256(part.read_bytes()).hexdigest()}  {part.name}"
        for part in parts
    ]
    assert sorted(path.name for path in folder.iterdir()) == [
        *("SHA256SUMS", "bundle.env", "install.sh"),
        *(part.name for part in parts),
    ]
    joined = tmp_path / "joined.tar"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(joined) as tar:
        for name in ("deep/a", "b"):
            inside = tar.extractfile(f"files{content}/{name}").read()
            assert inside == (content / name).read_bytes()
        readme = tar.extractfile("project/README.md").read()
        assert readme == (SCRIPTS.parent / "README.md").read_bytes()
        asked, tags = json.load(tar.extractfile("wheels/asked"))
    assert asked == ["Typing_Extensions==1"]
    assert tags[:2] == ["manylinux_2_18_aarch64", "manylinux_2_17_aarch64"]
    assert {"manylinux2014_aarch64", "manylinux1_aarch64"} < set(tags)


def test_what_makes_no_sense(bundle, tmp_path):
    for path, settings, expected in (
        ("/", {"PART_SIZE": "60Q!"}, "split: invalid number of bytes"),
        ("/", {"PLATFORM": "win_amd64"}, "PLATFORM=win_amd64: expected manylinux_2_"),
        ("/nowhere", {}, "/nowhere: No such file or directory"),
    ):
        made = bundle(path, **settings)
        assert made.returncode and expected in made.stderr
    assert not (tmp_path / "bundle").exists()
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "file").touch()
    assert "is not empty; choose another folder" in bundle().stderr


@pytest.fixture
def made(tmp_path):
    """A bundle of one small file, for this machine."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "file").write_bytes(os.urandom(11_000))
    pack = "tar -c project | split -d -b 20 - bundle/part_; cd bundle; sha256sum part_*"
    subprocess.run(["bash", "-c", f"{pack} > SHA256SUMS"], cwd=tmp_path, check=True)
    machine = os.uname().machine
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    settings = {"PYTHON_VERSION": version, "MACHINE": machine, "GLIBC": "17"}
    (folder / "install.sh").write_text((SCRIPTS / "install.sh").read_text())
    return folder, {**settings, "WITHOUT": ""}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"PYTHON_VERSION": "3.1"}, "the bundle is for Python 3.1; "),
        ({"MACHINE": "sparc"}, "the bundle is for sparc; this machine is "),
        ({"GLIBC": "99"}, "the bundle is for glibc 2.99 or newer; here it is 2."),
        ({}, "a part is missing or damaged; copy it again"),
    ],
    ids=["python", "machine", "glibc", "damage"],
)
def test_a_bundle_for_another_machine_installs_nothing(
    made, tmp_path, change, expected
):
    folder, settings = made
    text = "".join(f"{k}={v}\n" for k, v in {**settings, **change}.items())
    (folder / "bundle.env").write_text(text)
    if not change:
        (folder / "part_00").write_bytes(b"damaged")
    result = subprocess.run(
        ["bash", folder / "install.sh", tmp_path / "there"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and expected in result.stderr, result.stderr
    assert not (tmp_path / "there").exists()


def test_the_parts_that_have_a_sum_are_unpacked_in_their_order(made, tmp_path):
    folder, settings = made
    assert len(list(folder.glob("part_*"))) > 1000
    (folder / "part_00_old").write_bytes(b"of another bundle")
    (folder / "bundle.env").write_text(
        "".join(f"{key}={value}\n" for key, value in settings.items())
    )
    python = tmp_path / "python"  # makes no environment, which ends the installation
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\nexit 9\n'
    )
    python.chmod(0o755)
    there = tmp_path / "there"
    for name in (
        "wheels/erjepa-1-py3-none-any.whl",
        "project/erjepa/removed",
    ):  # an earlier one
        (there / name).parent.mkdir(parents=True)
        (there / name).touch()
    (there / "project" / "mine.yaml").touch()
    result = subprocess.run(
        ["bash", folder / "install.sh", "there"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 9, result.stderr
    assert not (there / "project" / "erjepa").exists()
    assert (there / "project" / "mine.yaml").exists()
    unpacked = tmp_path / "there" / "project" / "file"
    inside = (tmp_path / "project" / "file").read_bytes()
    assert unpacked.read_bytes() == inside


def test_a_check_has_a_limit_and_leaves_its_result(tmp_path):
    """Only the study, which continues when it is started again, may be stopped at its limit."""
    out = tmp_path / "out"
    out.mkdir()
    for check, code, how in (
        ("good 5 echo fine", 0, "good: passed"),
        ("study 1 sleep 9", 0, "study: stopped at its limit"),
        ("slow 1 sleep 9", 1, "slow: stopped at its limit"),
        ("bad 5 false", 1, "bad: failed (1)"),
        ("large 5 bash -c 'kill -9 $$'", 1, "large: killed"),
    ):
        script = f"out={out}; source {SCRIPTS}/checks.sh; check {check}; exit $failed"
        result = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert result.returncode == code
        *_, line = (out / "results.txt").read_text().splitlines()
        assert line.split(";")[0].rsplit(" after", 1)[0] == how
    assert (out / "good.log").read_text() == "fine\n"
