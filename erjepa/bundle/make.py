"""Collects the project, its wheels and files of configs in one folder."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from erjepa.bundle.parts import write_parts
from erjepa.bundle.wheels import collect_wheels, platform_tags
from erjepa.configs import Config, components, load, require_files

ROOT = Path(__file__).parents[2]
INSTALLER = Path(__file__).parent / "install.sh"
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_EXTRAS = ("dev",)


def files_of(cfg: Config) -> list[Path]:
    """The files and folders outside the project that a config names.

    Args:
        cfg: config of a recipe.

    Returns:
        list[Path]: absolute paths of datasets, tokenizer and base model.

    Raises:
        FileNotFoundError: naming the key, if one of them is not on this machine.
        ValueError: naming the key, if a dataset is no file or folder of this machine.
    """
    require_files(cfg)
    found = [Path(cfg.checkpointer.get("checkpoint_dir"))]
    named = (*map(cfg.tokenizer.get, ("path", "merges_file")), cfg.databases)
    found += [Path(path) for path in named if path]
    for key, section in (("dataset", cfg.dataset), ("eval_dataset", cfg.eval_dataset)):
        for component in components(section or []):
            source = component.get("source")
            if source is None:
                continue  # it makes its pairs
            if not Path(source).exists():
                raise ValueError(
                    f"{key}.source={source} is no file or folder here; fetch it and set "
                    f"{key}.source to it"
                )
            found.append(Path(source))
    installed = ROOT / "erjepa"
    outside = [p.absolute() for p in found if installed not in p.absolute().parents]
    return sorted(set(outside))


def size_in_bytes(text: str) -> int:
    """Bytes of a size such as ``60MiB``."""
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB)", text)
    if match is None or int(match[1]) < 1:
        raise ValueError(
            f"--max-part-size {text}: expected KiB, MiB or GiB, as in 60MiB"
        )
    return int(match[1]) * _UNITS[match[2]]


def collect_project(root: Path, folder: Path) -> None:
    """Copy the files of a checkout, but those that git ignores.

    Args:
        root (Path): the checkout.
        folder (Path): where they go.

    Raises:
        RuntimeError: if it is no checkout.
    """
    listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    command = ["git", "-C", str(root), *listing]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode or not (root / "pyproject.toml").exists():
        raise RuntimeError(f"{root} is no checkout of the project; run this from one")
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():
            there = folder / name
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, there)


def make_bundle(
    output: Path,
    configs: Sequence[str],
    overrides: Sequence[str],
    *,
    max_part_size: str,
    python: str,
    platform: str,
    without: Sequence[str],
) -> str:
    """Make a bundle.

    Args:
        output: an empty folder, or a new one.
        configs: whose datasets and base models it holds.
        overrides: ``key=value`` of each config.
        max_part_size: such as ``60MiB``.
        python: version that it is for, such as ``3.12``.
        platform: see :func:`platform_tags`.
        without: packages that the machine has.

    Returns:
        What it holds, in a sentence.

    Raises:
        FileExistsError: if ``output`` is not empty.
        FileNotFoundError: if a config names a file that is not here.
        RuntimeError: if a package has no wheel for the platform.
        ValueError: if an argument makes no sense.
    """
    max_size = size_in_bytes(max_part_size)
    platform_tags(platform)
    if not re.fullmatch(r"3\.\d+", python):
        raise ValueError(f"--python {python}: expected a version such as 3.12")
    paths: set[Path] = set()
    for name in configs:
        paths.update(files_of(load(name, overrides)))
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise FileExistsError(f"{output} is not empty; choose another folder")
    # Beside the parts, which are about as large: a full disk is found out there.
    with tempfile.TemporaryDirectory(dir=output, prefix=".") as folder:
        scratch = Path(folder)
        collect_project(ROOT, scratch / "project")
        pinned = collect_wheels(
            scratch / "project",
            scratch / "wheels",
            python=python,
            platform=platform,
            without=without,
            extras=_EXTRAS,
        )
        contents = [(scratch / name, name) for name in ("project", "wheels")]
        contents += [(path, f"files{path}") for path in sorted(paths)]
        count = write_parts(output, contents, max_size)
    _, _, glibc, machine = platform.split("_", 3)
    settings = {
        "PYTHON_VERSION": python,
        "MACHINE": machine,
        "GLIBC": glibc,
        "WITHOUT": ",".join(without),
    }
    (output / "bundle.env").write_text(
        "".join(f"{key}={value}\n" for key, value in settings.items())
    )
    shutil.copy(INSTALLER, output)
    size = sum(p.stat().st_size for p in output.glob("part_*"))
    return (
        f"{len(pinned)} packages, {len(paths)} files and folders, {size / 2**20:.0f} MiB "
        f"in {count} parts. There: bash {output.name}/{INSTALLER.name}"
    )
