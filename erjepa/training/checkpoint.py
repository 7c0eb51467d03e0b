"""Checkpoints that are complete or absent, and where to resume.

A checkpoint is one folder of ``output_dir``: ``epoch_0`` after the first epoch,
``epoch_1_step_40`` within the second, ``flops_0`` at the first of ``checkpoint_at_flops``. It
holds what torchtune's checkpointer writes (weights, adapter, their configs),
``progress.json``: where the run was, and ``predictor.pt``: the embeddings of the predictor
tokens, where they are trained. The newest of an epoch or step also has ``recipe_state.pt``:
all that a run needs to go on as if it had not stopped; without adapters that includes the
weights in the precision that they are trained in, where the model's files are rounded. Those
at FLOPs are for scoring, and so is ``best``, a link to the one that did best on validation,
``best_step_80``.

torchtune writes the files of a checkpoint one after the other where they are to be found, so
a killed run can leave half of one. Here they are written aside, and one rename puts them in
place.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from erjepa.training.peft_adapter import set_peft_adapter_apart

RECIPE_STATE = "recipe_state.pt"
ADAPTER = "adapter_model.pt"
PROGRESS = "progress.json"
PREDICTOR = "predictor.pt"
SCRATCH = ".partial"  # the checkpointer's own output_dir
BEST = "best"
_NAME = re.compile(r"epoch_(\d+)(?:_step_(\d+))?$")
_FLOPS_NAME = re.compile(r"flops_(\d+)$")


def checkpoint_name(epoch: int, step: int | None) -> str:
    """Name of the checkpoint of ``epoch`` (0-based), after ``step`` of its steps or all."""
    return f"epoch_{epoch}" if step is None else f"epoch_{epoch}_step_{step}"


def checkpoints(output_dir: Path) -> list[Path]:
    """The complete checkpoints of epochs and steps in ``output_dir``, oldest first."""
    return _matching(
        output_dir, _NAME, lambda epoch, step: (int(epoch), float(step or "inf"))
    )


def flops_checkpoints(output_dir: Path) -> list[Path]:
    """The complete checkpoints of ``checkpoint_at_flops`` in ``output_dir``, oldest first."""
    return _matching(output_dir, _FLOPS_NAME, int)


def all_checkpoints(output_dir: Path) -> list[Path]:
    """Those at FLOPs, then those of epochs and steps."""
    return flops_checkpoints(output_dir) + checkpoints(output_dir)


def _matching(
    output_dir: Path, pattern: re.Pattern, place: Callable[..., Any]
) -> list[Path]:
    found = []
    for path in output_dir.iterdir() if output_dir.is_dir() else ():
        if match := pattern.match(path.name):
            found.append((place(*match.groups()), path))
    return [path for _, path in sorted(found)]


def publish(
    output_dir: Path,
    name: str,
    write: Callable[[str], None],
    *,
    progress: dict[str, Any],
    predictor: Tensor | None = None,
    state: dict[str, Any] | None = None,
) -> Path:
    """Write a checkpoint aside, then put it in place at once.

    Older checkpoints keep their weights and, to one with a ``state``, give up their
    ``recipe_state.pt``.

    Args:
        output_dir (Path): folder of the run.
        name (str): name of the checkpoint.
        write (Callable[[str], None]): called with the ``epoch`` to hand to a torchtune
            checkpointer whose ``output_dir`` is ``output_dir / SCRATCH``.
        progress (dict[str, Any]): contents of ``progress.json``.
        predictor (Tensor | None): trained embeddings of the k predictor tokens, [k, H].
        state (dict[str, Any] | None): contents of ``recipe_state.pt``.

    Returns:
        Path: the checkpoint.
    """
    scratch = output_dir / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    epoch = name.removeprefix("epoch_")
    written = scratch / f"epoch_{epoch}"  # where a torchtune checkpointer writes
    written.mkdir(parents=True)
    write(epoch)
    set_peft_adapter_apart(written)
    (written / PROGRESS).write_text(json.dumps(progress, indent=2) + "\n")
    if predictor is not None:
        torch.save(predictor, written / PREDICTOR)
    if state is not None:
        torch.save(state, written / RECIPE_STATE)
    for file in written.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    older = checkpoints(output_dir) if state is not None else []
    final = output_dir / name
    os.rename(written, final)
    shutil.rmtree(scratch)
    for path in older:
        (path / RECIPE_STATE).unlink(missing_ok=True)
    return final


def best_name(step: int | str) -> str:
    """Name of the checkpoint that did best on validation, after ``step`` steps of the run."""
    return f"{BEST}_step_{step}"


def set_best(path: Path) -> None:
    """Make ``best`` lead to the checkpoint ``path``, at once; those before it go."""
    output_dir, link = path.parent, path.parent / f".{BEST}"
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)
    os.replace(link, output_dir / BEST)
    scratch = output_dir / SCRATCH
    for older in output_dir.glob(best_name("*")):
        if older != path:
            scratch.mkdir(exist_ok=True)
            os.rename(older, scratch / older.name)  # absent first, then deleted
    shutil.rmtree(scratch, ignore_errors=True)


def load_progress(path: Path) -> dict[str, Any]:
    """Where the run was at the checkpoint ``path``."""
    return json.loads((path / PROGRESS).read_text())


def load_predictor(path: Path) -> Tensor | None:
    """Trained embeddings of the predictor tokens, [k, H], or ``None`` if they were frozen."""
    file = path / PREDICTOR
    return torch.load(file, weights_only=True) if file.is_file() else None


def load_latest(output_dir: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The newest checkpoint that a run can go on from.

    Args:
        output_dir (Path): folder of the run.

    Returns:
        tuple[Path, dict[str, Any], dict[str, Any]]: its folder, trained weights in
        torchtune's format, and recipe state, ``predictor`` included.

    Raises:
        FileNotFoundError: if there is none.
    """
    resumable = resumable_checkpoints(output_dir)
    if not resumable:
        raise FileNotFoundError(
            f"resume_from_checkpoint=True, but {output_dir} holds no checkpoint with a "
            f"{RECIPE_STATE}. Set output_dir to that of the run to go on with, or start "
            "one: resume_from_checkpoint=False and an output_dir without checkpoints."
        )
    newest = resumable[-1]
    # Mapped, so that the ranks of a machine share what they read.
    options: dict[str, Any] = {
        "map_location": "cpu",
        "weights_only": True,
        "mmap": True,
    }
    state = torch.load(newest / RECIPE_STATE, **options)
    if (newest / ADAPTER).is_file():
        trained = torch.load(newest / ADAPTER, **options)
    else:
        trained = state.pop("weights")
    return newest, trained, {**state, "predictor": load_predictor(newest)}


def resumable_checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoints that a run can go on from, oldest first."""
    return [p for p in checkpoints(output_dir) if (p / RECIPE_STATE).is_file()]
