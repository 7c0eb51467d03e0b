"""Writing, listing and loading of checkpoints.

A checkpoint is a folder in ``output_dir``: ``epoch_0`` after the first epoch,
``epoch_1_step_40`` within the second, ``flops_0`` at the first of ``checkpoint_at_flops``,
``best_step_80``, to which the link ``best`` points. It holds the files that torchtune's
checkpointer writes, the embeddings of the predictor tokens, the episodic memory, averaged weights
in ``ema``, the run's progress, and a manifest of all these files. Checkpoints of epochs and steps
can be resumed: their ``recipe_state.pt`` holds the rest of the run's state, including, for full
fine-tuning, the weights in their training precision.

torchtune writes the files of a checkpoint one by one in place, so a killed run can leave an
incomplete one. Here they are written into a scratch folder, which one rename puts in place.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchtune import utils
from typing_extensions import TypedDict

from erjepa.checkpoints.manifest import (
    MANIFEST,
    damage,
    require_deleted,
    write_manifest,
)
from erjepa.utils.checked import read_json
from erjepa.utils.files import CONFIG, EMA, PEFT, let_others_read
from erjepa.utils.summary import Summary

log = utils.get_logger("INFO")

RECIPE_STATE = "recipe_state.pt"
ADAPTER = "adapter_model.pt"
PROGRESS = "progress.json"
PREDICTOR = "predictor.pt"
MEMORY = "memory"  # folder, see erjepa/checkpoints/memory_file.py
SCRATCH = ".partial"  # output_dir of torchtune's checkpointer
EPOCH = "epoch_"  # prefix of the folders that it writes
BEST = "best"
# With mmap the ranks of a machine share the pages that they read.
_MAPPED: dict[str, Any] = {"map_location": "cpu", "weights_only": True, "mmap": True}
_NAME = re.compile(r"epoch_(\d+)(?:_step_(\d+))?$")
_BEST_NAME = re.compile(r"best_step_\d+$")
_FLOPS_NAME = re.compile(r"flops_(\d+)$")


class _Progress(TypedDict, total=False):
    """The keys of ``progress.json`` that are read."""

    __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]

    steps: int
    epoch: float
    total_flops: int | float
    total_tokens: int | float
    train_seconds: float
    budget: int | float
    averaged_steps: int
    # Of adapters; earlier checkpoints have them in their run's config only.
    lora_alpha: float
    base_adapters: list[str]
    data: dict[str, str | int]  # the run's dataset, see data_of
    base_weights: str  # digest of the weights that adapters were trained over
    # Checkpoints of earlier runs when the run started, relative to the paths in the config.
    started_from: dict[str, str]


def checkpoint_name(epoch: int, step: int | None) -> str:
    """Return the name of the checkpoint after ``step`` steps, or all, of ``epoch`` (0-based)."""
    return f"epoch_{epoch}" if step is None else f"epoch_{epoch}_step_{step}"


def flops_name(index: int) -> str:
    """Return the checkpoint's name for budget ``index`` (0-based) of ``checkpoint_at_flops``."""
    return f"flops_{index}"


def checkpoints(output_dir: Path) -> list[Path]:
    """List the checkpoints of epochs and steps in ``output_dir``, oldest first."""
    return _matching(output_dir, _NAME)


def flops_checkpoints(output_dir: Path) -> list[Path]:
    """List the checkpoints of ``checkpoint_at_flops`` in ``output_dir``, oldest first."""
    return _matching(output_dir, _FLOPS_NAME)


def saved(output_dir: Path) -> list[Path]:
    """List the checkpoints of epochs and steps, or those at FLOPs if a run kept no others."""
    return checkpoints(output_dir) or flops_checkpoints(output_dir)


def newest(path: Path) -> Path:
    """Return the newest checkpoint if ``path`` is a run's ``output_dir``, otherwise ``path``.

    Raises:
        FileNotFoundError: if there is no such folder, or the run has no checkpoint.
    """
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    if existing := saved(path):
        return existing[-1]
    if (path / CONFIG).is_file():
        raise FileNotFoundError(f"{path} holds no checkpoint; train one")
    return path


def current(path: Path) -> Path:
    """Return the checkpoint that ``path`` stands for now: the newest of a run, or the one that the
    link ``best`` points to. Any other path is returned unchanged.
    """
    return (saved(path) or [without_link(path)])[-1]


def without_link(path: Path) -> Path:
    """Return ``path`` with the link ``best``, if it is in it, replaced by its target."""
    for link in (path, *path.parents):
        if link.name == BEST and link.is_symlink():
            return link.parent / link.readlink() / path.relative_to(link)
    return path


def with_link(path: Path) -> Path:
    """Return ``path`` with the name of a best checkpoint in it replaced by the link ``best``."""
    return Path(*(BEST if _BEST_NAME.match(part) else part for part in path.parts))


def _matching(output_dir: Path, name: re.Pattern) -> list[Path]:
    """List folders with such names, sorted by their numbers; a missing number sorts last."""
    numbered = []
    for path in output_dir.iterdir() if output_dir.is_dir() else ():
        if match := name.match(path.name):
            numbered.append(([float(n or "inf") for n in match.groups()], path))
    return [path for _, path in sorted(numbered)]


@contextmanager
def new(output_dir: Path, name: str) -> Iterator[Path]:
    """Write a checkpoint atomically, and replace one of the same name.

    Yields a folder for its files, in which a torchtune checkpointer with the ``output_dir``
    ``output_dir / SCRATCH`` can write. Its manifest and a rename complete the checkpoint; an error
    leaves nothing of it, and the one of the same name in place.
    """
    scratch = output_dir / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    folder, final = scratch / f"{EPOCH}new", output_dir / name
    replaced = scratch / "replaced"
    try:
        folder.mkdir(parents=True)
        yield folder
        for part in (folder / EMA, folder):
            if part.is_dir():
                write_manifest(part)
        let_others_read(folder)
        if final.exists():  # the run was resumed from an earlier checkpoint
            os.rename(final, replaced)
        os.rename(folder, final)
    finally:
        if replaced.exists() and not final.exists():
            os.rename(replaced, final)
        shutil.rmtree(scratch, ignore_errors=True)


def prune(output_dir: Path, keep_last_n: int | None, keep_epochs: bool) -> None:
    """Delete the oldest checkpoints that can be resumed.

    Args:
        keep_last_n: how many to keep; ``None``: all.
        keep_epochs: from checkpoints at the end of an epoch, delete only ``recipe_state.pt``.
    """
    for path in resumable_checkpoints(output_dir)[: -keep_last_n if keep_last_n else 0]:
        if keep_epochs and "step" not in path.name:
            (path / RECIPE_STATE).unlink()
        else:
            _delete(path)


def _delete(path: Path) -> None:
    """Delete a checkpoint; the rename comes first, so a kill leaves no incomplete one.

    Of one that was moved elsewhere and linked, only the link is deleted.
    """
    if path.is_symlink():
        path.unlink()
        return
    scratch = path.parent / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    os.rename(path, scratch)
    shutil.rmtree(scratch)


def best_name(step: int | str) -> str:
    """Return the name of the best checkpoint on validation, after ``step`` steps of the run."""
    return f"{BEST}_step_{step}"


def set_best(path: Path) -> None:
    """Point the link ``best`` to the checkpoint ``path``, and delete earlier best checkpoints."""
    output_dir, link = path.parent, path.parent / f".{BEST}"
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)
    best = output_dir / BEST
    is_copy = best.is_dir() and not best.is_symlink()
    if is_copy:  # the run was copied without links
        _delete(best)
    os.replace(link, best)
    for older in output_dir.glob(best_name("*")):
        if older != path:
            _delete(older)


def of_weights(path: Path, which: str) -> list[Path]:
    """List the folders of a checkpoint's weights: the last, then the averaged weights.

    Args:
        path: the checkpoint, or the folder of its averaged weights, which is then the only one.
        which: ``last``, ``ema`` or ``both``.

    Raises:
        FileNotFoundError: if averaged weights are requested and there are none.
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
    """Return the name under which a folder of weights is scored: ``epoch_0``, ``epoch_0_ema``,
    ``epoch_0_adapter``.
    """
    if path.name not in (EMA, PEFT):
        return path.name
    parent = Path(os.path.abspath(path)).parent  # of "ema" alone, too
    return f"{score_name(parent)}_{path.name}"


def name_of_scores(path: Path | None, split: str, *, merged: bool) -> str:
    """Return the name of the folder for the scores of weights in ``path``, or of the base model."""
    name = "base" if path is None else score_name(path)
    return f"{name}{'_validation' * (split == 'validation')}{'_merged' * merged}"


def scored_weights(folder: str, summary: Summary) -> str:
    """Return the name, as :func:`name_of_scores` does, of the weights whose scores are in a folder.

    The answers of another program were scored for weights that are not known; they have the
    folder's name.
    """
    if summary.checkpoint is None:
        return folder
    merged = (summary.weights or "").endswith("merged")
    return name_of_scores(Path(summary.checkpoint), summary.split or "", merged=merged)


def load_progress(path: Path) -> dict[str, Any]:
    return {**read_json(_Progress, path / PROGRESS)}


def progress_of(path: Path) -> dict[str, Any]:
    """Return :func:`load_progress`; empty for a folder of weights that no run wrote."""
    return load_progress(path) if (path / PROGRESS).is_file() else {}


def load_predictor(path: Path) -> Tensor | None:
    """Load the embeddings of the predictor tokens, [k, H]; ``None`` if they were frozen."""
    file = path / PREDICTOR
    return torch.load(file, weights_only=True) if file.is_file() else None


def latest(output_dir: Path) -> Path:
    """Return the newest checkpoint of a run to resume, after verifying all its files.

    Raises:
        FileNotFoundError: if no checkpoint can be resumed.
        ValueError: if it is damaged or cannot be resumed, naming the newest intact checkpoint.
    """
    resumable = resumable_checkpoints(output_dir)
    if not resumable:
        raise FileNotFoundError(
            f"resume_from_checkpoint=True, but {output_dir} holds no checkpoint with a "
            f"{RECIPE_STATE}. Set output_dir to that of the run to resume, or start "
            "one: resume_from_checkpoint=False and an output_dir without checkpoints."
        )
    newest = checkpoints(output_dir)[-1]
    require_deleted(newest)
    problem = damage(newest)
    if problem is None and newest not in resumable:
        problem = f"{newest} holds no {RECIPE_STATE}"
    if problem:
        raise ValueError(f"{problem}. {how_to_resume_before(newest)}")
    return newest


def how_to_resume_before(bad: Path, then: str = "") -> str:
    """Return how to resume from the newest intact checkpoint before ``bad``.

    The text names the command that deletes all newer ones, followed by ``then``. Intact files
    suffice, since the run continued after every checkpoint but the newest.
    """
    existing = checkpoints(bad.parent)
    for i in reversed(range(existing.index(bad))):
        if (existing[i] / RECIPE_STATE).is_file() and not damage(existing[i]):
            removal = shlex.join(["rm", "-r", *map(str, existing[i + 1 :])])
            return f"{existing[i].name} is good; to resume from it, first\n  {removal}{then}"
    return "There is no older checkpoint to resume from."


def load_resumable(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load trained weights in torchtune's format, and the recipe state with ``predictor``."""
    state = torch.load(path / RECIPE_STATE, **_MAPPED)
    if (path / ADAPTER).is_file():
        trained = torch.load(path / ADAPTER, **_MAPPED)
    else:
        trained = state.pop("weights")
    return trained, {**state, "predictor": load_predictor(path)}


def load_torchtune_adapter(folder: Path) -> tuple[dict[str, Tensor], Tensor | None]:
    """Load the adapter of a checkpoint in torchtune's format, and the embeddings of its predictor
    tokens, [k, H], if they were trained.

    Raises:
        ValueError: if a file is damaged.
    """
    require_intact(folder, [ADAPTER, f"{PREDICTOR}*"])
    return torch.load(folder / ADAPTER, **_MAPPED), load_predictor(folder)


def require_intact(path: Path, patterns: Iterable[str]) -> None:
    """Verify the files of a checkpoint that match name patterns against its manifest.

    A folder without a manifest was not written by a run; it is accepted with a warning.

    Raises:
        ValueError: naming the first damaged file.
    """
    require_deleted(path)
    if not (path / MANIFEST).is_file():
        log.warning(f"{path} has no {MANIFEST}: its files cannot be checked.")
    elif problem := damage(path, patterns):
        raise ValueError(f"{problem}. It cannot be used; take another checkpoint.")


def resumable_checkpoints(output_dir: Path) -> list[Path]:
    """List the checkpoints that can be resumed, oldest first."""
    return [p for p in checkpoints(output_dir) if (p / RECIPE_STATE).is_file()]
