"""Checkpoints that are complete or absent, and where to resume.

A checkpoint is one folder of ``output_dir``: ``epoch_0`` after the first epoch,
``epoch_1_step_40`` within the second, ``flops_0`` at the first of ``checkpoint_at_flops``,
``best_step_80``, to which the link ``best`` leads. It holds what torchtune's checkpointer
writes, the embeddings of the predictor tokens, the episodic memory, averaged weights in
``ema``, where the run was, and the manifest of all these files. Those of epochs and steps can
be resumed: their ``recipe_state.pt`` has the rest of the run's state, and without adapters the
weights in the precision that they are trained in.

torchtune writes the files of a checkpoint one after the other in place, so a killed run can
leave half of one. Here they are written aside, and one rename puts them in place.
"""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchtune import utils
from typing_extensions import TypedDict

from erjepa.checkpoints.manifest import MANIFEST, damage, write_manifest
from erjepa.checkpoints.model_card import CARD
from erjepa.checkpoints.peft_adapter import FOLDER, move_peft_adapter
from erjepa.utils.checked import checked
from erjepa.utils.files import CONFIG, EMA, let_others_read
from erjepa.utils.jsonl import parse_json

log = utils.get_logger("INFO")

RECIPE_STATE = "recipe_state.pt"
ADAPTER = "adapter_model.pt"
PROGRESS = "progress.json"
PREDICTOR = "predictor.pt"
MEMORY = "memory"  # folder, see erjepa/checkpoints/memory_file.py
SCRATCH = ".partial"  # the checkpointer's own output_dir
BEST = "best"
# Ranks of a machine share what they read.
_MAPPED: dict[str, Any] = {"map_location": "cpu", "weights_only": True, "mmap": True}
_NAME = re.compile(r"epoch_(\d+)(?:_step_(\d+))?$")
_FLOPS_NAME = re.compile(r"flops_(\d+)$")


class _Progress(TypedDict, total=False):
    """What is read of ``progress.json``; a checkpoint of validation also has its metrics."""

    __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]

    steps: int
    epoch: float
    total_flops: int | float
    total_tokens: int | float
    train_seconds: float
    budget: int | float
    averaged_steps: int


def checkpoint_name(epoch: int, step: int | None) -> str:
    """Name of the checkpoint of ``epoch`` (0-based), after ``step`` of its steps or all."""
    return f"epoch_{epoch}" if step is None else f"epoch_{epoch}_step_{step}"


def flops_name(index: int) -> str:
    """Name of the checkpoint at the budget ``index`` of ``checkpoint_at_flops``, 0-based."""
    return f"flops_{index}"


def checkpoints(output_dir: Path) -> list[Path]:
    """The complete checkpoints of epochs and steps in ``output_dir``, oldest first."""
    return _matching(output_dir, _NAME)


def flops_checkpoints(output_dir: Path) -> list[Path]:
    """The complete checkpoints of ``checkpoint_at_flops`` in ``output_dir``, oldest first."""
    return _matching(output_dir, _FLOPS_NAME)


def all_checkpoints(output_dir: Path) -> list[Path]:
    """Those at FLOPs, then those of epochs and steps."""
    return flops_checkpoints(output_dir) + checkpoints(output_dir)


def newest(path: Path) -> Path:
    """The checkpoint that a user names: one itself, or the newest of a run's ``output_dir``.

    Raises:
        FileNotFoundError: if there is no such folder, or the run has no checkpoint.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    found = checkpoints(path)
    if not found and (path / CONFIG).is_file():
        raise FileNotFoundError(f"{path} holds no checkpoint; train one")
    return found[-1] if found else path


def _matching(output_dir: Path, name: re.Pattern) -> list[Path]:
    """Folders of such a name, by the numbers in it; one that is left out is the last."""
    found = []
    for path in output_dir.iterdir() if output_dir.is_dir() else ():
        if match := name.match(path.name):
            found.append(([float(n or "inf") for n in match.groups()], path))
    return [path for _, path in sorted(found)]


class Exported(NamedTuple):
    """Weights that go into a checkpoint.

    Args:
        write: called with the ``epoch`` to hand to a torchtune checkpointer whose ``output_dir``
            is ``output_dir / SCRATCH``.
        predictor: trained embeddings of the k predictor tokens, [k, H].
    """

    write: Callable[[str], None]
    predictor: Tensor | None = None


def publish(
    output_dir: Path,
    name: str,
    weights: Exported,
    *,
    progress: dict[str, Any],
    averaged: Exported | None = None,
    state: dict[str, Any] | None = None,
    write_memory: Callable[[Path], None] | None = None,
    keep_last_n: int | None = None,
    keep_epochs: bool = False,
) -> Path:
    """Write a checkpoint aside, then put it in place at once, also of one of the same name.

    After one with a ``state`` the oldest that can be resumed are deleted.

    Args:
        averaged: averages of the weights.
        state: contents of ``recipe_state.pt``.
        write_memory: called with the folder to put the episodic memory into.
        keep_last_n: how many that can be resumed are kept, this one included; ``None``: all.
        keep_epochs: whether those at the end of an epoch lose their ``state`` alone.
    """
    scratch = output_dir / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    epoch = name.removeprefix("epoch_")
    written = _write(scratch, epoch, weights, progress)
    if averaged is not None:
        aside = _write(scratch, f"{epoch}_{EMA}", averaged, progress)
        write_manifest(aside, leave_out=[CARD])
        os.rename(aside, written / EMA)
    if state is not None:
        torch.save(state, written / RECIPE_STATE)
    if write_memory is not None:
        write_memory(written)
    write_manifest(written, leave_out=[CARD])
    let_others_read(written)
    final = output_dir / name
    if final.exists():  # this run was resumed from a checkpoint before it
        os.rename(final, scratch / "replaced")
    os.rename(written, final)
    if state is not None and keep_last_n is not None:
        for path in resumable_checkpoints(output_dir)[:-keep_last_n]:
            if keep_epochs and "step" not in path.name:
                (path / RECIPE_STATE).unlink()
            else:
                os.rename(path, scratch / path.name)  # absent first, then deleted
    shutil.rmtree(scratch)
    return final


def _write(
    scratch: Path, epoch: str, weights: Exported, progress: dict[str, Any]
) -> Path:
    """The folder of weights as they are scored, and of where the run was."""
    written = scratch / f"epoch_{epoch}"  # where a torchtune checkpointer writes
    written.mkdir(parents=True)
    weights.write(epoch)
    _drop_copies(written)
    move_peft_adapter(written)
    (written / PROGRESS).write_text(json.dumps(progress, indent=2) + "\n")
    if weights.predictor is not None:
        torch.save(weights.predictor, written / PREDICTOR)
    return written


def _drop_copies(written: Path) -> None:
    """Remove what the checkpointer copied from the checkpoint that a run started from."""
    for folder in (FOLDER, MEMORY, EMA):
        shutil.rmtree(written / folder, ignore_errors=True)
    for file in (PROGRESS, MANIFEST):
        (written / file).unlink(missing_ok=True)


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


def of_weights(path: Path, which: str) -> list[Path]:
    """The folders of a checkpoint's weights: the last ones, then the averaged ones.

    Args:
        path: the checkpoint, or already the folder of its averaged weights.
        which: ``last``, ``ema`` or ``both``.

    Raises:
        FileNotFoundError: if averaged weights are asked for, and there are none.
    """
    if which == "last" or path.name == EMA:
        return [path]
    if not (path / EMA).is_dir():
        raise FileNotFoundError(
            f"checkpoint={which}: {path} holds no averaged weights, {EMA}/. Train with "
            "ema_decay, or take the last weights, checkpoint=last"
        )
    return [path / EMA] if which == "ema" else [path, path / EMA]


def score_name(path: Path) -> str:
    """What the scores of a folder of weights go by: ``epoch_0``, or ``epoch_0_ema``."""
    return f"{path.parent.name}_{EMA}" if path.name == EMA else path.name


def load_progress(path: Path) -> dict[str, Any]:
    """Where the run was at the checkpoint ``path``."""
    file = path / PROGRESS
    values = parse_json(file.read_bytes(), str(file))
    return {**checked(_Progress, values, str(file))}


def load_predictor(path: Path) -> Tensor | None:
    """Trained embeddings of the predictor tokens, [k, H], or ``None`` if they were frozen."""
    file = path / PREDICTOR
    return torch.load(file, weights_only=True) if file.is_file() else None


def latest(output_dir: Path) -> Path:
    """The newest checkpoint of a run to resume from, after every file of it was read.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is damaged, naming the file, and the newest good one.
    """
    resumable = resumable_checkpoints(output_dir)
    if not resumable:
        raise FileNotFoundError(
            f"resume_from_checkpoint=True, but {output_dir} holds no checkpoint with a "
            f"{RECIPE_STATE}. Set output_dir to that of the run to resume, or start "
            "one: resume_from_checkpoint=False and an output_dir without checkpoints."
        )
    newest = checkpoints(output_dir)[-1]
    if found := damage(newest):
        raise ValueError(f"{found}. {how_to_resume_before(newest)}")
    return newest


def how_to_resume_before(bad: Path, then: str = "") -> str:
    """Name the newest good checkpoint before ``bad``, and the command that makes it the newest,
    followed by ``then``.

    Each checkpoint but the newest is good unless it is damaged: its run continued from it.
    """
    found = checkpoints(bad.parent)
    for i in reversed(range(found.index(bad))):
        if (found[i] / RECIPE_STATE).is_file() and not damage(found[i]):
            removal = shlex.join(["rm", "-r", *map(str, found[i + 1 :])])
            return (
                f"{found[i].name} is good; to resume from it, first\n  {removal}{then}"
            )
    return "There is no older checkpoint to resume from."


def load_resumable(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trained weights in torchtune's format, and the recipe state with ``predictor``."""
    state = torch.load(path / RECIPE_STATE, **_MAPPED)
    if (path / ADAPTER).is_file():
        trained = torch.load(path / ADAPTER, **_MAPPED)
    else:
        trained = state.pop("weights")
    return trained, {**state, "predictor": load_predictor(path)}


def load_trained(path: Path, key: str) -> tuple[Path, dict[str, Tensor], Tensor | None]:
    """Trained weights that another run starts from.

    Args:
        path: a checkpoint, or the folder of a run, of which the newest is taken.
        key: that names it, for the message.

    Returns:
        The checkpoint, its adapter in torchtune's format, and the embeddings of the predictor
        tokens, [k, H], if they were trained.

    Raises:
        FileNotFoundError: if there is no adapter.
        ValueError: if it is not what was written.
    """
    for folder in (path, *reversed(checkpoints(path))):
        if (folder / ADAPTER).is_file():
            require_intact(folder, [ADAPTER, f"{PREDICTOR}*"])
            adapter = torch.load(folder / ADAPTER, **_MAPPED)
            return folder, adapter, load_predictor(folder)
    raise FileNotFoundError(
        f"{key}={path} holds no {ADAPTER} and no adapter of PEFT. Give the output_dir of a "
        "run that trained adapters, one of its checkpoints, or the folder of a PEFT adapter; "
        "to start from whole weights, set checkpointer.checkpoint_dir."
    )


def require_intact(path: Path, patterns: Iterable[str]) -> None:
    """Read files of a checkpoint, and fail if one is not what was written.

    A folder without a manifest was not written by a run, and is taken as it is, with a warning.

    Args:
        patterns: names of the files that are going to be used.

    Raises:
        ValueError: naming the file.
    """
    if not (path / MANIFEST).is_file():
        log.warning(f"{path} has no {MANIFEST}: its files cannot be checked.")
    elif found := damage(path, patterns):
        raise ValueError(f"{found}. It cannot be used; take another checkpoint.")


def resumable_checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoints that can be resumed, oldest first."""
    return [p for p in checkpoints(output_dir) if (p / RECIPE_STATE).is_file()]
