"""Collect everything that a machine without a network needs.

Run it in a checkout of the project, on a machine with a network. FOLDER gets the project, wheels
of its dependencies and, for each CONFIG, the datasets and the files of the base model, all in
parts of a limited size. Copy FOLDER to the other machine and run

    bash FOLDER/install.sh [WHERE]

It installs the project offline, puts the files where the configs expect them and runs the checks
of the machine. key=value overrides a key of all configs, such as dataset.source=FOLDER.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erjepa.utils.command_line import CommandLine

if TYPE_CHECKING:
    from erjepa.configs import Config

ROOT = Path(__file__).parents[2]
INSTALLER = ROOT / "scripts" / "install.sh"
_PIP = (sys.executable, "-m", "pip")
_EXTRA = "dev"
# Minor version of glibc -> older name of its manylinux tag.
_OLD_NAMES = {17: "2014", 12: "2010", 5: "1"}
# Arguments: SCRATCH SIZE OUTPUT FILE... tar -h follows links, such as those of the hub's cache.
_PACK = """
set -o pipefail
tar -chP --transform 's,^/,files/,' -C "$1" project wheels "${@:4}" | split -d -b "$2" - "$3/part_"
cd "$3" && sha256sum part_* > SHA256SUMS
"""


def main(arguments: Sequence[str]) -> None:
    """Make a bundle."""
    parser = CommandLine(prog="erjepa bundle", description=__doc__)
    parser.add_argument(
        "words",
        metavar="CONFIG | key=value",
        nargs="*",
        help="configs, and overrides of their keys",
    )
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, required=True, help="folder to write"
    )
    parser.add_argument(
        "--max-part-size",
        metavar="SIZE",
        default="60M",
        help="maximum size of a part (default: %(default)s)",
    )
    parser.add_argument(
        "--python",
        metavar="VERSION",
        default="3.12",
        help="Python of the other machine (default: %(default)s)",
    )
    parser.add_argument(
        "--platform",
        default="manylinux_2_28_x86_64",
        help="manylinux_2_GLIBC_MACHINE of the other machine (default: %(default)s)",
    )
    parser.add_argument(
        "--without",
        metavar="PACKAGE,...",
        default="",
        help="packages that the other machine has",
    )
    asked = parser.parse_intermixed_args(arguments)
    with parser.errors(asked):
        print(make_bundle(asked))


def make_bundle(asked: argparse.Namespace) -> str:
    """Make a bundle; return a sentence about its contents."""
    from erjepa.configs import load

    _run(
        "split", f"--bytes={asked.max_part_size}", os.devnull
    )  # checks the size  # fails early on an invalid size
    tags = platform_tags(asked.platform)
    if not re.fullmatch(r"3\.\d+", asked.python):
        raise ValueError(f"--python {asked.python}: expected a version such as 3.12")
    overrides = [word for word in asked.words if "=" in word]
    configs = [load(word, overrides) for word in asked.words if "=" not in word]
    files = {path for cfg in configs for path in files_of(cfg)}
    files = {path for path in files if files.isdisjoint(path.parents)}
    output: Path = asked.output
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise FileExistsError(f"{output} is not empty; choose another folder")
    # In the output folder: its disk needs the space for the parts anyway.
    with tempfile.TemporaryDirectory(dir=output, prefix=".") as folder:
        scratch = Path(folder)
        copy_project(scratch / "project")
        target = ["--only-binary=:all:", f"--python-version={asked.python}"]
        target += [f"--platform={tag}" for tag in tags]
        without = [name for name in asked.without.split(",") if name]
        pinned = collect_wheels(scratch, target, without)
        pack(scratch, asked.max_part_size, output, files)
    _, _, glibc, machine = asked.platform.split("_", 3)
    (output / "bundle.env").write_text(
        f"PYTHON_VERSION={asked.python}\nMACHINE={machine}\nGLIBC={glibc}\n"
        f"WITHOUT={asked.without}\n"
    )
    shutil.copy(INSTALLER, output)
    sizes = [part.stat().st_size for part in output.glob("part_*")]
    return (
        f"{len(pinned)} packages, {len(files)} files and folders, "
        f"{sum(sizes) / 2**20:.0f} MiB in {len(sizes)} parts. "
        f"There: bash {output.name}/{INSTALLER.name}"
    )


def platform_tags(platform: str) -> list[str]:
    """Return all wheel tags that a platform can run, newest first; pip must be given each."""
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


def files_of(cfg: "Config") -> set[Path]:
    """Return absolute paths of the files and folders outside the project that a config names.

    Raises:
        FileNotFoundError: if a file of the base model is not on this machine.
        ValueError: if a dataset is not a file or folder on this machine.
    """
    from erjepa.configs import components, require_files

    cfg = require_files(cfg)
    tokenizer = map(cfg.tokenizer.get, ("path", "merges_file"))
    found = [cfg.checkpointer.get("checkpoint_dir"), *tokenizer, cfg.databases]
    for key, section in (("dataset", cfg.dataset), ("eval_dataset", cfg.eval_dataset)):
        for component in components(section or []):
            source = component.get("source")  # None: the dataset is generated
            if source is not None and not Path(source).exists():
                raise ValueError(
                    f"{key}.source={source} is not a file or folder on this machine; "
                    f"download it and set "
                    f"{key}.source to it"
                )
            found.append(source)
    paths = {Path(path).absolute() for path in found if path}
    return {path for path in paths if ROOT / "erjepa" not in path.parents}


def copy_project(folder: Path) -> None:
    """Copy the files of the checkout, without those that git ignores."""
    listing = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if not (ROOT / "pyproject.toml").exists():
        raise RuntimeError(
            f"{ROOT} is not a checkout of the project; run this from one"
        )
    for name in _run("git", "-C", str(ROOT), *listing).split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def collect_wheels(
    scratch: Path, target: Sequence[str], without: Collection[str]
) -> list[str]:
    """Build the wheel of ``scratch/project`` and download those of its dependencies.

    pip evaluates markers on the Python version with the Python that runs it, so make a bundle
    with the version it is for if possible; the installer runs ``pip check``.

    Args:
        target: pip's options that select the Python version and the platform.
        without: packages that the machine has; what only they need is left out too.

    Returns:
        ``NAME==VERSION`` of each package.
    """
    from packaging.utils import canonicalize_name

    wheels, report = scratch / "wheels", scratch / "report.json"
    _run(*_PIP, "wheel", "--no-deps", f"--wheel-dir={wheels}", str(scratch / "project"))
    (wheel,) = wheels.iterdir()
    asked = ["--dry-run", "--ignore-installed", f"--report={report}"]
    asked += [f"--target={scratch}", *target, f"{wheel}[{_EXTRA}]"]
    _run(*_PIP, "install", *asked)
    found = json.loads(report.read_text())
    packages: dict[str, Any] = {
        canonicalize_name(item["metadata"]["name"]): item["metadata"]
        for item in found["install"]
    }
    left_out: set[str] = {canonicalize_name(name) for name in without}
    if unknown := left_out - packages.keys():
        raise ValueError(
            f"--without {','.join(sorted(unknown))}: not a dependency of the project"
        )
    needed = needed_packages(packages, "erjepa", left_out, found["environment"])
    names = sorted(needed - {"erjepa"})
    pinned = [f"{name}=={packages[name]['version']}" for name in names]
    _run(*_PIP, "download", "--no-deps", f"--dest={wheels}", *target, *pinned)
    return pinned


def needed_packages(
    packages: Mapping[str, Mapping[str, Any]],
    root: str,
    left_out: Collection[str],
    environment: Mapping[str, str],
) -> set[str]:
    """Return the packages that ``root`` needs if those in ``left_out`` are installed."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    reached: set[tuple[str, str]] = set()
    ahead = [(root, ""), (root, _EXTRA)]
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


def pack(scratch: Path, max_size: str, output: Path, files: Iterable[Path]) -> None:
    """Write ``project`` and ``wheels`` of ``scratch``, and ``files``, as an archive in parts."""
    paths = map(str, (scratch, max_size, output, *sorted(files)))
    _run("bash", "-c", _PACK, "pack", *paths)


def _run(*command: str) -> str:
    """Run a program and return its output; raise ``RuntimeError`` with its last error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"{command[0]} failed"]
        errors = [line for line in said if line.startswith("ERROR")]
        raise RuntimeError((errors or said)[-1])
    return done.stdout
