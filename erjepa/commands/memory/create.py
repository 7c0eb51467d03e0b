"""Make a memory from a dataset, without a run."""

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import torch
from omegaconf import OmegaConf
from torch import Tensor
from tqdm import tqdm

from erjepa.checkpoints.checkpoint import MEMORY, SCRATCH
from erjepa.checkpoints.manifest import write_manifest
from erjepa.checkpoints.memory_file import write_memory, write_texts
from erjepa.configs import Config, require_files
from erjepa.evaluation.alignment import target_losses
from erjepa.evaluation.model import load_model
from erjepa.evaluation.run import find_run
from erjepa.objective import PackedDecoder
from erjepa.packing import PairCollator
from erjepa.replay import EpisodicReplay, ReplaySettings
from erjepa.training.model.device import attention_of, run_device
from erjepa.training.run.data import fitting_pairs, split_pairs
from erjepa.training.run.origins import Origins
from erjepa.training.run.prepared import PreparedRun
from erjepa.utils.files import CONFIG

_AT_ONCE = 256  # pairs stored in one call, whose time grows with their square


def create(
    out: Path,
    cfg: Config,
    number: int | None = None,
    share: float | None = None,
    by: Literal["random", "surprise"] = "random",
    checkpoint: Path | None = None,
) -> tuple[int, int]:
    """Make a memory of randomly drawn pairs, or of those with the largest token loss.

    Pairs that ``validation`` holds out and pairs that do not fit are left out.

    Args:
        cfg: config of a run; sets the dataset, tokenizer, seed and ``replay.score``.
        number: number of pairs; ``None``: all, or a ``share`` of them.
        by: ``surprise``: pairs with the largest token loss, equally many of each dataset.
        checkpoint: run or checkpoint whose model computes the loss; ``None``: the base model.

    Returns:
        Number of pairs in the memory, and of those that a run would train on.

    Raises:
        FileExistsError: if ``out`` exists.
        FileNotFoundError: if the base model or the tokenizer is missing.
        ValueError: if ``share`` or ``number`` is out of range.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists; choose another folder for the memory")
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"--share {share}: must be above 0 and at most 1")
    cfg = require_files(replace(cfg, seed=cfg.seed or 0))
    run = PreparedRun(cfg, torch.device("cpu"))
    if by == "surprise":
        device = run_device(cfg)
        run = PreparedRun(cfg, device, attention_of(cfg, device))
    dataset, collator = run.dataset, run.collators.new.without_views()
    skip = cfg.skip_too_long
    fitting = fitting_pairs(run, dataset, collator, skip_too_long=skip)
    places = torch.tensor(split_pairs(run, fitting)[0], dtype=torch.int64)
    if number is None:
        number = max(round(len(places) * (1.0 if share is None else share)), 1)
    if not 1 <= number <= len(places):
        raise ValueError(
            f"--number {number}: must be at least 1 and at most {len(places)}, the pairs that "
            "a run would train on"
        )
    settings = ReplaySettings(
        capacity=number,
        selection="uniform",
        address="none",
        score="lm" if by == "surprise" else cfg.replay.score,
        retention="surprise" if by == "surprise" else "reservoir",
    )
    scores = torch.ones(len(places))
    if by == "surprise":
        scores = surprises(run, collator, places, checkpoint)
    replay = EpisodicReplay(settings, embed_dim=1, seed=cfg.drawn_seed)
    origins = Origins(dataset)
    ids = origins.ids(places)
    for part in torch.arange(len(places)).split(_AT_ONCE):
        segments = [dataset[i].segments for i in places[part].tolist()]
        replay.write(ids[part], segments, None, scores[part])

    about = {
        "tokenizer": run.texts.fingerprint,
        "origins": origins.names,
        "inherited": 0,
        "replay": asdict(settings),
    }
    where = dict(zip(ids.tolist(), map(dataset.where, places.tolist()), strict=True))
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}{SCRATCH}")
    shutil.rmtree(aside, ignore_errors=True)  # of a command that was killed
    aside.mkdir()
    try:
        write_memory(aside / MEMORY, replay, about)
        write_texts(aside / MEMORY, replay.memory, run.texts, where.__getitem__)
        OmegaConf.save(OmegaConf.create(cfg.as_written()), aside / CONFIG)
        write_manifest(aside)
        os.rename(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return len(replay), len(places)


def surprises(
    run: PreparedRun, collator: PairCollator, places: Tensor, checkpoint: Path | None
) -> Tensor:
    """Compute the token loss of pairs under the model of ``checkpoint``, or the base model.

    Args:
        places: indices of the pairs, int64, [n].

    Returns:
        Their mean cross-entropy per label, in nats, [n].

    Raises:
        FileNotFoundError: if the weights are missing.
        ValueError: if a loss is not finite.
    """
    path = None if checkpoint is None else find_run(checkpoint)[1]
    decoder = load_model(run.cfg, run.device, path)
    model = PackedDecoder(decoder, attention=run.model.attention)
    losses: list[float] = []
    for some in tqdm(places.split(run.cfg.batch_size), unit="batch"):
        pairs = [run.dataset[i] for i in some.tolist()]
        read = target_losses(model, collator, pairs)
        losses += [fields["target_loss"] for fields in read]
    found = torch.tensor(losses)
    if len(bad := places[~found.isfinite()]):
        raise ValueError(
            f"{run.dataset.where(int(bad[0]))}: the model's loss is not finite"
        )
    return found
