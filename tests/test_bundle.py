"""A bundle: its contents, its parts, and what its installer refuses."""

import hashlib
import os
import subprocess
import sys
import tarfile
from dataclasses import replace

import pytest

from erjepa.commands import bundle
from erjepa.commands.bundle import (
    INSTALLER,
    files_of,
    main,
    needed_packages,
    pack,
    platform_tags,
)


def packed(folder, scratch, max_size, files):
    """A bundle of an empty project, no wheels and ``files``; its parts in their order."""
    for name in ("project", "wheels"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    pack(scratch, max_size, folder, files)
    return sorted(folder.glob("part_*"))


def test_parts_join_to_the_tar(tmp_path):
    content, folder = tmp_path / "content", tmp_path / "out"
    (content / "deep").mkdir(parents=True)
    folder.mkdir()
    (tmp_path / "blob").write_bytes(os.urandom(70_000))
    (content / "deep" / "a").symlink_to(tmp_path / "blob")  # as in a cache of the hub
    (content / "b").write_bytes(b"b" * 5)
    parts = packed(folder, tmp_path / "scratch", "20KiB", [content])
    sizes = [part.stat().st_size for part in parts]
    assert sizes[:-1] == [20_480] * 3 and 0 < sizes[-1] <= 20_480
    assert (folder / "SHA256SUMS").read_text().splitlines() == [
        f"{hashlib.sha256(part.read_bytes()).hexdigest()}  {part.name}"
        for part in parts
    ]
    joined = tmp_path / "joined.tar"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(joined) as tar:
        assert {"project", "wheels"} < set(tar.getnames())
        for name in ("deep/a", "b"):
            inside = tar.extractfile(f"files{content}/{name}").read()
            assert inside == (content / name).read_bytes()


def test_platforms_that_a_machine_can_run():
    tags = platform_tags("manylinux_2_18_aarch64")
    assert tags[:3] == [
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
    ]
    assert tags[-2:] == ["manylinux_2_5_aarch64", "manylinux1_aarch64"]


def test_what_a_package_alone_needs_goes_with_it():
    packages = {
        "ours": [
            "torch>=2",
            "numpy",
            "pytest; extra == 'dev'",
            "old; python_version<'3'",
        ],
        "torch": ["sympy", "numpy", "fast[gpu]"],
        "sympy": ["mpmath"],
        **{name: [] for name in ("numpy", "mpmath", "pytest", "fast", "old")},
    }
    packages = {name: {"requires_dist": needs} for name, needs in packages.items()}
    environment = {"python_version": "3.12"}

    def needed(left_out):
        return needed_packages(packages, "ours", left_out, environment)

    assert needed(()) == packages.keys() - {"old"}
    assert needed({"torch"}) == {"ours", "numpy", "pytest"}


def test_files_that_a_config_names(base, data, tmp_path):
    from tests.harness.runs import make_config, overrides_for

    cfg = make_config(overrides_for(base, data, tmp_path))
    cfg = replace(cfg, eval_dataset=cfg.dataset)
    assert files_of(cfg) == {base, data, base / "tokenizer.model"}
    url = "https://example.org/pairs.jsonl"
    cfg = replace(cfg, dataset=cfg.dataset.with_arguments(source=url))
    with pytest.raises(
        ValueError, match="dataset.source=https://example.org/pairs.jsonl is"
    ):
        files_of(cfg)


def test_what_makes_no_sense(tmp_path, capsys, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    monkeypatch.setattr(bundle, "copy_project", lambda *_: pytest.fail("it was made"))
    for arguments, expected in (
        (["--max-part-size", "60Q"], "split: invalid number of bytes"),
        (["--platform", "win_amd64"], "--platform win_amd64: expected manylinux_2_"),
        (["--python", "three"], "--python three: expected a version such as 3.12"),
        (["tiny_sinth"], "tiny_synth"),
    ):
        with pytest.raises(SystemExit):
            main([*arguments, "--output", str(tmp_path / "new")])
        assert expected in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "full")])
    assert "is not empty; choose another folder" in capsys.readouterr().err


@pytest.fixture
def made(tmp_path):
    """A bundle of one small file, for this machine."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (tmp_path / "file").write_text("content")
    packed(folder, tmp_path / "scratch", "1M", [tmp_path / "file"])
    machine = os.uname().machine
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    settings = {"PYTHON_VERSION": version, "MACHINE": machine, "GLIBC": "17"}
    (folder / INSTALLER.name).write_text(INSTALLER.read_text())
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
        ["bash", folder / INSTALLER.name, tmp_path / "there"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and expected in result.stderr, result.stderr
    assert not (tmp_path / "there").exists()


def test_the_parts_that_have_a_sum_are_unpacked_in_their_order(made, tmp_path):
    folder, settings = made
    inside = tmp_path / "scratch" / "project" / "file"
    inside.write_bytes(os.urandom(11_000))
    assert len(packed(folder, tmp_path / "scratch", "20", [])) > 1000
    (folder / "part_00_old").write_bytes(b"of another bundle")
    (folder / "bundle.env").write_text(
        "".join(f"{key}={value}\n" for key, value in settings.items())
    )
    python = tmp_path / "python"  # makes no environment, which ends the installation
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\nexit 9\n'
    )
    python.chmod(0o755)
    result = subprocess.run(
        ["bash", folder / INSTALLER.name, tmp_path / "there"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 9, result.stderr
    unpacked = tmp_path / "there" / "project" / "file"
    assert unpacked.read_bytes() == inside.read_bytes()


def test_a_check_has_a_limit_and_leaves_its_result(tmp_path):
    script = (
        f"out={tmp_path}/out; source {INSTALLER.parent}/checks.sh;"
        "check good 5 echo fine; check slow 1 sleep 9; check bad 5 false; exit $failed"
    )
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert result.returncode == 1
    lines = (tmp_path / "out" / "results.txt").read_text().splitlines()
    how = [line.split(";")[0].rsplit(" after", 1)[0] for line in lines]
    assert how == ["good: passed", "slow: stopped at its limit", "bad: failed (1)"]
    assert (tmp_path / "out" / "good.log").read_text() == "fine\n"
