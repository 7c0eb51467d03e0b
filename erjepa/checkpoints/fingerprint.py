"""The fingerprint of a run, stored in checkpoints to detect changes when the run is resumed."""

import hashlib
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from erjepa.configs import Config, weights_of
from erjepa.configs.schema import DEFAULTS
from erjepa.datasets import Pair
from erjepa.datasets.split import count_held_out
from erjepa.replay import ReplaySettings
from erjepa.utils.checked import leaves
from erjepa.utils.files import open_regular

# Keys that determine the final weights, averaged ones included. Data is compared by its tokens,
# and the base model by its weights, wherever they are stored. The pairs of a step matter, but not
# how they are split into ranks and rows. All other keys concern paths, duration, speed and
# reporting.
DECIDING = (
    *("model", "dtype", "trainable_dtype"),
    *("loss", "num_predictor_tokens", "predictor_tokens", "train_predictor_tokens"),
    *("predictor_position", "views", "train_on_input"),
    *("train_on_turns", "train_end_of_turn"),
    *("replay", "shuffle"),
    *("optimizer", "lr_scheduler", "clip_grad_norm", "max_steps_per_epoch"),
    *("ema_decay", "orthogonal_weight"),
)
# Exceptions: other implementations of the same update, other locations of the same base model.
_FREE = ("optimizer.fused", "optimizer.foreach", "model.path", "model.revision")
# Whether a memory was inherited, from wherever; a resumed run has it in its checkpoints.
_INHERITS = "replay.init_from"
# A resumed run cannot change these: they determine its position in the data, which of the pairs
# before it are in the memory, and what the run started with.
_FIXED = (
    *("seed", "shuffle", "pairs of a step", "replayed share", "replay.share"),
    *("replay.draw_from", "loss.jepa_every"),
    *("validation.size", "validation.seed", "max_steps_per_epoch", "dataset.weight"),
    _INHERITS,
)
# Shapes of weights: with another, those of the checkpoint would not load.
_SHAPES = ("model.lora_rank", "num_predictor_tokens")
# A resumed run cannot change these once it has a memory.
_OF_MEMORY = (
    *("dataset", "replay.on_revisit"),
    *("replay.address", "replay.address_dim", "replay.address_top_k"),
)
_SAMPLE = 256  # values of each weight in the digest
_BLOCKS, _BLOCK = 256, 4096  # of a file in its digest: number, and bytes of each
# Defaults of keys that old checkpoints may lack.
_DEFAULTS = {
    **{key: DEFAULTS[key] for key in ("train_on_turns", "orthogonal_weight")},
    "lr_scheduler.until": "epochs",
    **{f"replay.{field.name}": field.default for field in fields(ReplaySettings)},
}


def fingerprint(
    cfg: Config, *, pairs_of_a_step: int, share: float, pairs: Iterable[Pair]
) -> dict[str, Any]:
    """Return the settings and digests that determine a run's weights, by dotted key.

    Args:
        pairs_of_a_step: pairs per optimizer step, over all ranks and micro-batches.
        share: fraction of these that are replayed.
        pairs: pairs that the run trains on, in dataset order.
    """
    config = cfg.as_dict()
    values: dict[str, Any] = {
        "seed": cfg.seed,
        "pairs of a step": pairs_of_a_step,
        "replayed share": share,
        "validation.size": cfg.validation.size,
        "validation.seed": cfg.validation.seed,
        "dataset": digest_of_pairs(pairs),
    }
    if weights := weights_of(cfg.dataset):
        values["dataset.weight"] = weights
    for key in DECIDING:
        values.update(leaves(key, config[key]))
    values[_INHERITS] = bool(cfg.replay.start_from)
    return {key: value for key, value in values.items() if key not in _FREE}


def digest_of_weights(weights: Mapping[str, Tensor]) -> str:
    """Return a short digest of a model: name, shape, dtype and some values of each weight."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        row = weight[tuple(n // 2 for n in weight.shape[:-1])].reshape(-1)[:_SAMPLE]
        digest.update(row.contiguous().view(torch.uint8).numpy().tobytes())
    return f"{len(weights)} weights, {digest.hexdigest()[:12]}"


def digests_of_files(folder: Path) -> dict[str, str]:
    """Return :func:`digest_of_file` of each file with weights or their scale, by name."""
    patterns = ("*model*", "*.safetensors", "*.pth", "adapter_config.json")
    files = {f for name in patterns for f in folder.glob(name) if f.is_file()}
    return {file.name: digest_of_file(file) for file in sorted(files)}


def digest_of_file(path: Path) -> str:
    """Return the size of a file and a short digest of evenly spaced blocks, or of all of a file of
    up to 1 MiB.
    """
    digest = hashlib.sha256()
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, max(size // _BLOCKS, _BLOCK)):
            file.seek(start)
            digest.update(file.read(_BLOCK))
    return f"{size} bytes, {digest.hexdigest()[:12]}"


def digest_of_pairs(pairs: Iterable[Pair]) -> str:
    """Return a short digest of pairs: their number, ids and tokens."""
    digest, count = hashlib.sha256(), 0
    for pair in pairs:
        lengths = [len(segment) for segment in pair.segments]
        digest.update(f"{pair.example_id} {lengths}".encode())
        for segment in pair.segments:
            digest.update(segment)
        count += 1
    return f"{count} pairs, {digest.hexdigest()[:12]}"


def data_of(cfg: Config, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return what determines which of all ``pairs`` of a dataset a run holds out, for
    ``progress.json``.
    """
    size = cfg.validation.size
    return {
        "pairs": digest_of_pairs(pairs),
        "held_out": 0 if size is None else count_held_out(size, len(pairs)),
        "validation_seed": cfg.validation.seed,
    }


def changed_keys(
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    allowed: Collection[str],
    where: object,
) -> set[str]:
    """Return the keys that a resumed run changes, all of which must be allowed.

    Args:
        saved: fingerprint of the run that wrote the checkpoint.
        current: fingerprint of the resumed run.
        allowed: ``resume_changes``; a section allows all of its keys.
        where: the checkpoint, for messages.

    Raises:
        ValueError: naming keys that changed and are not allowed, or an allowed key that is
            unknown or may never change.
    """
    saved = {key: value for key, value in saved.items() if key not in _FREE}
    known = {**saved, **current}

    def may_change(key: str, names: Iterable[str]) -> bool:
        is_named = any(key == name or key.startswith(f"{name}.") for name in names)
        return is_named and key not in _FIXED

    for name in allowed:
        if not any(may_change(key, [name]) for key in known):
            raise ValueError(
                f"resume_changes: {name} is none of the keys that a resumed run may "
                f"change: {', '.join(key for key in known if key not in _FIXED)}"
            )
    # Checkpoints written before a key existed had its default.
    share = {"replayed share": current.get("replayed share")}
    saved = {**_DEFAULTS, **share, **saved}
    saved[_INHERITS] = bool(saved[_INHERITS])  # a path in older checkpoints
    changed = [key for key in known if saved.get(key) != current.get(key)]
    refused = [key for key in changed if not may_change(key, allowed)]
    if not refused:
        return set(changed)
    lines = [
        f"  {key}: {saved.get(key)} there, {current.get(key)} here" for key in refused
    ]
    if any(key in _FIXED for key in refused):
        lines.append(
            "A resumed run keeps its seed, shuffle, its batch_size x "
            "gradient_accumulation_steps x ranks, max_steps_per_epoch, the weights of its "
            "datasets, replay.share, replay.draw_from, whether it replays a share, "
            "loss.jepa_every, its validation pairs, and the memory that it started with."
        )
    capacity = "replay.capacity"
    shrinks = capacity in refused and current[capacity] < saved[capacity]
    of_memory = (*_OF_MEMORY, *[capacity] * shrinks) if saved["replay.weight"] else ()
    if any(key in of_memory for key in refused):
        lines.append(
            "The memory keeps its dataset, on_revisit and addresses, and cannot shrink; to change "
            f"that, set a new output_dir and continue_from={where}"
        )
    if any(key in _SHAPES for key in refused):
        lines.append(f"A resumed run keeps {' and '.join(_SHAPES)}.")
    turns_replay = "replayed share" in refused  # on or off
    kept = {*_FIXED, *_SHAPES, *of_memory, *["replay.weight"] * turns_replay}
    if free := sorted(key for key in refused if key not in kept):
        allowing = shlex.quote(f"resume_changes=[{','.join(free)}]")
        lines.append(f"Keep what it had, or allow the change: {allowing}")
    raise ValueError("\n".join([f"{where} was written with other settings:", *lines]))
