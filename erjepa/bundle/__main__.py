"""Collects what a machine without a network needs: ``python -m erjepa.bundle --output FOLDER``.

Run it in a checkout, where there is a network. FOLDER gets the project and wheels of all it needs;
for each CONFIG also the datasets and the files of the base model that it names; all that in parts
of a bounded size, with ``install.sh``::

    bash FOLDER/install.sh [WHERE]

which installs them offline, puts files where the config names them, and runs the checks of the
machine. ``key=value`` sets keys of the configs, such as ``dataset.source=FOLDER``.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from erjepa.bundle.parts import write_parts
from erjepa.bundle.wheels import collect_wheels, platform_tags
from erjepa.configs import complete, load, prepare, require_files
from erjepa.datasets import components
from erjepa.utils.command_line import CommandLine

ROOT = Path(__file__).parents[2]
INSTALLER = Path(__file__).parent / "install.sh"
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_EXTRAS = ("dev",)


def files_of(cfg: DictConfig) -> list[Path]:
    """The files and folders outside the project that a config names.

    Args:
        cfg (DictConfig): config of a recipe.

    Returns:
        list[Path]: absolute paths of datasets, tokenizer and base model.

    Raises:
        FileNotFoundError: naming the key, if one of them is not on this machine.
        ValueError: naming the key, if a dataset is no file or folder of this machine.
    """
    require_files(cfg)
    found = [Path(cfg.checkpointer.checkpoint_dir)]
    for key in ("tokenizer.path", "tokenizer.merges_file", "databases"):
        if path := OmegaConf.select(cfg, key):
            found.append(Path(path))
    for key in ("dataset", "eval_dataset"):
        for component in components(cfg[key]) if cfg[key] is not None else ():
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a bundle.

    Args:
        arguments (Sequence[str] | None): command line; ``None`` for that of the process.
    """
    parser = CommandLine(prog="python -m erjepa.bundle", description=__doc__)
    parser.add_argument("words", metavar="CONFIG | key=value", nargs="*")
    parser.add_argument("--output", metavar="FOLDER", type=Path, required=True)
    parser.add_argument("--max-part-size", metavar="SIZE", default="60MiB")
    parser.add_argument("--python", metavar="VERSION", default="3.12")
    parser.add_argument("--platform", default="manylinux_2_28_x86_64")
    parser.add_argument(
        "--without", metavar="PACKAGE,...", default="", help="what the machine has"
    )
    args = parser.parse_intermixed_args(arguments)
    with parser.errors(args):
        max_size = size_in_bytes(args.max_part_size)
        platform_tags(args.platform)
        if not re.fullmatch(r"3\.\d+", args.python):
            raise ValueError(f"--python {args.python}: expected a version such as 3.12")
        prepare()
        overrides = [word for word in args.words if "=" in word]
        configs = [word for word in args.words if "=" not in word]
        paths: set[Path] = set()
        for name in configs:
            paths.update(files_of(complete(load(name, overrides))))
        without = tuple(filter(None, args.without.split(",")))
        args.output.mkdir(parents=True, exist_ok=True)
        if any(args.output.iterdir()):
            raise FileExistsError(f"{args.output} is not empty; choose another folder")
        # Beside the parts, which are about as large: a full disk is found out there.
        with tempfile.TemporaryDirectory(dir=args.output, prefix=".") as scratch:
            _make(args, Path(scratch), sorted(paths), without, max_size)


def _make(
    args: argparse.Namespace,
    scratch: Path,
    paths: Sequence[Path],
    without: Sequence[str],
    max_size: int,
) -> None:
    collect_project(ROOT, scratch / "project")
    pinned = collect_wheels(
        scratch / "project",
        scratch / "wheels",
        python=args.python,
        platform=args.platform,
        without=without,
        extras=_EXTRAS,
    )
    inside = [(path, f"files{path}") for path in paths]
    contents = [(scratch / name, name) for name in ("project", "wheels")]
    count = write_parts(args.output, [*contents, *inside], max_size)
    _, _, glibc, machine = args.platform.split("_", 3)
    settings = {
        "PYTHON_VERSION": args.python,
        "MACHINE": machine,
        "GLIBC": glibc,
        "WITHOUT": ",".join(without),
    }
    (args.output / "bundle.env").write_text(
        "".join(f"{key}={value}\n" for key, value in settings.items())
    )
    shutil.copy(INSTALLER, args.output)
    size = sum(p.stat().st_size for p in args.output.glob("part_*"))
    print(
        f"{len(pinned)} packages, {len(paths)} files and folders, {size / 2**20:.0f} MiB "
        f"in {count} parts. There: bash {args.output.name}/{INSTALLER.name}"
    )


if __name__ == "__main__":
    main()
