"""Wheels of the project and of all it needs, for a machine that may be another one than this."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# What older names of manylinux mean.
_OLD_NAMES = {17: "2014", 12: "2010", 5: "1"}


def platform_tags(platform: str) -> list[str]:
    """The platform of wheels and all those that it can run, newest first; pip wants each.

    Args:
        platform (str): such as ``manylinux_2_28_x86_64``.

    Returns:
        list[str]: tags.

    Raises:
        ValueError: if it is not of that form.
    """
    match = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", platform)
    if match is None:
        raise ValueError(
            f"--platform {platform}: expected manylinux_2_GLIBC_MACHINE, such as "
            "manylinux_2_28_x86_64; `ldd --version` tells a machine's glibc"
        )
    tags, machine = [], match[2]
    for glibc in range(int(match[1]), 4, -1):
        tags.append(f"manylinux_2_{glibc}_{machine}")
        if glibc in _OLD_NAMES:
            tags.append(f"manylinux{_OLD_NAMES[glibc]}_{machine}")
    return tags


def collect_wheels(
    project: Path,
    folder: Path,
    *,
    python: str,
    platform: str,
    without: Collection[str],
    extras: Sequence[str],
) -> list[str]:
    """Build the project's wheel, and download those of what it needs.

    pip reads conditions on the version of Python as those of the Python that runs it, so make
    a bundle with the version it is for where that is possible; the installer runs ``pip check``.

    Args:
        project (Path): its source.
        folder (Path): where wheels go.
        python (str): version that they are for, such as ``3.12``.
        platform (str): see :func:`platform_tags`.
        without (Collection[str]): packages that the machine has. What they alone need is left
            out too.
        extras (Sequence[str]): of the project.

    Returns:
        list[str]: ``NAME==VERSION`` of each package.

    Raises:
        RuntimeError: with what pip says, if a package has no wheel for the platform.
        ValueError: if ``without`` names a package that the project does not need.
    """
    target = ["--only-binary=:all:", "--python-version", python]
    for tag in platform_tags(platform):
        target += ["--platform", tag]
    folder.mkdir(parents=True)
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(project))
    (wheel,) = folder.iterdir()
    root = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        asked = ["--dry-run", "--ignore-installed", "--report", str(report)]
        _pip("install", *asked, "--target", scratch, *target, root)
        found = json.loads(report.read_text())
    packages: dict[str, Any] = {
        canonicalize_name(item["metadata"]["name"]): item["metadata"]
        for item in found["install"]
    }
    name: str = canonicalize_name(wheel.name.split("-")[0])
    left_out: set[str] = {canonicalize_name(package) for package in without}
    if unknown := left_out - packages.keys():
        raise ValueError(
            f"--without {','.join(sorted(unknown))}: not among what it needs"
        )
    needed = _reachable(packages, name, extras, left_out, found["environment"])
    pinned = sorted(f"{n}=={packages[n]['version']}" for n in needed - {name})
    _pip("download", "--no-deps", "--dest", str(folder), *target, *pinned)
    return pinned


def _reachable(
    packages: Mapping[str, Mapping[str, Any]],
    root: str,
    extras: Sequence[str],
    left_out: Collection[str],
    environment: Mapping[str, str],
) -> set[str]:
    """The packages that are needed where those left out are there."""
    reached: set[tuple[str, str]] = set()
    ahead = [(root, extra) for extra in ("", *extras)]
    while ahead:
        name, extra = ahead.pop()
        if (name, extra) in reached or name in left_out or name not in packages:
            continue
        reached.add((name, extra))
        for text in packages[name].get("requires_dist", ()):
            need = Requirement(text)
            where = {**environment, "extra": extra}
            if need.marker is None or need.marker.evaluate(where):
                other = canonicalize_name(need.name)
                ahead += [(other, of) for of in ("", *need.extras)]
    return {name for name, _ in reached}


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [x for x in done.stderr.splitlines() if x.startswith("ERROR")]
        raise RuntimeError(f"pip {arguments[0]}: {(errors or [done.stderr])[-1]}")
