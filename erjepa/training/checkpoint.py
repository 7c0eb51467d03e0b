"""Checkpoints that are complete or absent, and where to resume.

A checkpoint is one folder of ``output_dir``: ``epoch_0`` after the first epoch,
``epoch_1_step_40`` within the second. It holds what torchtune's checkpointer writes (merged
weights, adapter, their configs) and, in the newest one, ``recipe_state.pt``: all that a run
needs to go on as if it had not stopped.

torchtune writes the files of a checkpoint one after the other where they are to be found, so
a killed run can leave half of one. Here they are written aside, and one rename puts them in
place.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from erjepa.training.peft_adapter import set_peft_adapter_apart

RECIPE_STATE = "recipe_state.pt"
ADAPTER = "adapter_model.pt"
SCRATCH = ".partial"  # the checkpointer's own output_dir
_NAME = re.compile(r"epoch_(\d+)(?:_step_(\d+))?$")


def checkpoint_name(epoch: int, step: int | None) -> str:
    """Name of the checkpoint of ``epoch`` (0-based), after ``step`` of its steps or all."""
    return f"epoch_{epoch}" if step is None else f"epoch_{epoch}_step_{step}"


def checkpoints(output_dir: Path) -> list[Path]:
    """The complete checkpoints in ``output_dir``, oldest first."""
    found = []
    for path in output_dir.iterdir() if output_dir.is_dir() else ():
        if match := _NAME.match(path.name):
            epoch, step = match.groups()
            found.append(((int(epoch), float(step or "inf")), path))
    return [path for _, path in sorted(found)]


def publish(
    output_dir: Path, name: str, write: Callable[[str], None], state: dict[str, Any]
) -> Path:
    """Write a checkpoint aside, then put it in place at once.

    Older checkpoints keep their weights and give up their ``recipe_state.pt``.

    Args:
        output_dir (Path): folder of the run.
        name (str): from :func:`checkpoint_name`.
        write (Callable[[str], None]): called with the ``epoch`` to hand to a torchtune
            checkpointer whose ``output_dir`` is ``output_dir / SCRATCH``.
        state (dict[str, Any]): contents of ``recipe_state.pt``.

    Returns:
        Path: the checkpoint.
    """
    scratch = output_dir / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    written = scratch / name
    written.mkdir(parents=True)
    write(name.removeprefix("epoch_"))
    set_peft_adapter_apart(written)
    torch.save(state, written / RECIPE_STATE)
    for file in written.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    older = checkpoints(output_dir)
    final = output_dir / name
    os.rename(written, final)
    shutil.rmtree(scratch)
    for path in older:
        (path / RECIPE_STATE).unlink(missing_ok=True)
    return final


def load_latest(output_dir: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The newest checkpoint that a run can go on from.

    Args:
        output_dir (Path): folder of the run.

    Returns:
        tuple[Path, dict[str, Any], dict[str, Any]]: its folder, adapter weights in
        torchtune's format, and recipe state.

    Raises:
        FileNotFoundError: if there is none.
    """
    resumable = [p for p in checkpoints(output_dir) if (p / RECIPE_STATE).is_file()]
    if not resumable:
        raise FileNotFoundError(
            f"resume_from_checkpoint=True, but {output_dir} holds no checkpoint with a "
            f"{RECIPE_STATE}. Set output_dir to that of the run to go on with, or "
            "resume_from_checkpoint=False to start one."
        )
    newest = resumable[-1]
    adapter, state = (
        torch.load(newest / name, map_location="cpu", weights_only=True)
        for name in (ADAPTER, RECIPE_STATE)
    )
    return newest, adapter, state
