"""Make a memory from a dataset, without a run."""

import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from omegaconf import OmegaConf
from torch import Tensor
from torchtune.modules.transforms import Transform
from tqdm import tqdm

from erjepa.checkpoints.checkpoint import MEMORY
from erjepa.checkpoints.manifest import write_manifest
from erjepa.checkpoints.memory_file import write_memory, write_texts
from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.configs import Config, require_files
from erjepa.datasets import PairedDataset, build_dataset
from erjepa.evaluation.model import load_model
from erjepa.evaluation.run import find_run
from erjepa.objective import JEPALoss, PackedDecoder
from erjepa.packing import PairCollator
from erjepa.replay import EpisodicReplay, ReplaySettings
from erjepa.training.model.device import attention_of, run_device
from erjepa.training.run.data import RunViews, fitting_pairs, pair_collators
from erjepa.training.run.origins import Origins
from erjepa.utils.files import CONFIG


def create(
    out: Path,
    cfg: Config,
    number: int | None = None,
    share: float | None = None,
    by: Literal["random", "surprise"] = "random",
    checkpoint: Path | None = None,
) -> tuple[int, int]:
    """Make a memory of randomly drawn pairs, or of those with the largest token loss.

    Args:
        out: folder to create.
        cfg: config of a run; sets the dataset, tokenizer, seed and ``replay.score``.
        number: number of pairs; ``None``: all, or a ``share`` of them.
        by: ``surprise``: pairs with the largest token loss, equally many of each dataset.
        checkpoint: run or checkpoint whose model computes the loss; ``None``: the base model.

    Returns:
        Numbers of pairs in the memory and in the dataset.

    Raises:
        FileExistsError: if ``out`` exists.
        ValueError: if ``share`` or ``number`` is out of range.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists; choose another folder for the memory")
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"--share {share}: must be above 0 and at most 1")
    cfg = replace(cfg, seed=cfg.seed or 0)
    tokenizer = cfg.tokenizer.build()
    dataset = build_dataset(cfg.dataset, tokenizer)
    if number is None:
        number = max(round(len(dataset) * (1.0 if share is None else share)), 1)
    if not 1 <= number <= len(dataset):
        raise ValueError(
            f"--number {number}: must be at least 1 and at most {len(dataset)}, the "
            "pairs of the dataset"
        )
    settings: dict[str, Any] = {"score": cfg.replay.score}
    if by == "surprise":
        offered, scores = surprises(cfg, dataset, tokenizer, checkpoint)
        settings = {"score": "lm", "retention": "surprise"}
    else:
        generator = torch.Generator().manual_seed(cfg.drawn_seed)
        vocab_size, num_positions = tokenizer.vocab_size, cfg.max_seq_len
        _, places = _fitting(cfg, dataset, tokenizer, vocab_size, num_positions)
        drawn = torch.randperm(len(places), generator=generator)[:number]
        offered, scores = places[drawn].sort().values, torch.ones(len(drawn))
    replay_settings = ReplaySettings(
        capacity=number, selection="uniform", address="none", **settings
    )
    replay = EpisodicReplay(replay_settings, embed_dim=1, seed=cfg.drawn_seed)
    segments = [dataset[i].segments for i in offered.tolist()]
    origins = Origins(dataset)
    ids = origins.ids(offered)
    replay.write(ids, segments, None, scores)

    texts = PairTexts(tokenizer)
    aside = out.with_name(f".{out.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    about = {
        "tokenizer": texts.fingerprint,
        "origins": origins.names,
        "inherited": 0,
        "replay": asdict(replay_settings),
    }
    write_memory(aside / MEMORY, replay, about)
    where = dict(zip(ids.tolist(), map(dataset.where, offered.tolist()), strict=True))
    write_texts(aside / MEMORY, replay.memory, texts, where.__getitem__)
    OmegaConf.save(OmegaConf.create(cfg.as_written()), aside / CONFIG)
    write_manifest(aside)
    os.rename(aside, out)
    return len(replay), len(dataset)


@torch.no_grad()
def surprises(
    cfg: Config, dataset: PairedDataset, tokenizer: Transform, checkpoint: Path | None
) -> tuple[Tensor, Tensor]:
    """Compute the token loss of pairs under the model of ``checkpoint``, or the base model.

    Returns:
        Indices of the pairs that fit ``max_seq_len``, ascending, int64, [n], and their mean
        cross-entropy per label, in nats, [n].

    Raises:
        FileNotFoundError: if the weights are missing.
        ValueError: if a pair is too long, or a loss is not finite.
    """
    device = run_device(cfg)
    attention = attention_of(cfg, device)
    cfg = require_files(cfg)
    path = None if checkpoint is None else find_run(checkpoint)[1]
    decoder = load_model(cfg, device, path)
    vocab_size = decoder.tok_embeddings.num_embeddings
    collator, places = _fitting(
        *(cfg, dataset, tokenizer, vocab_size, decoder.max_seq_len),
        trim=attention == "dense",
    )
    model, loss_fn = PackedDecoder(decoder, attention=attention), JEPALoss()
    losses = torch.empty(len(dataset))
    for some in tqdm(places.split(cfg.batch_size), unit="batch"):
        batch = collator([dataset[i] for i in some.tolist()]).to(device)
        _, of_pairs = loss_fn(model(batch), batch, 1, 1)
        means = of_pairs.lm / batch.labels_of_pairs.clamp(min=1)
        losses[batch.example_ids.cpu()] = means.cpu()
    if len(bad := places[~losses[places].isfinite()]):
        raise ValueError(
            f"{dataset.where(int(bad[0]))}: the model's loss is not finite"
        )
    return places, losses[places]


def _fitting(
    cfg: Config,
    dataset: PairedDataset,
    tokenizer: Transform,
    vocab_size: int,
    num_positions: int,
    trim: bool = True,
) -> tuple[PairCollator, Tensor]:
    """Return a collator of pairs without views, and the indices of those that fit, int64."""
    views = RunViews("none", "none", 0)
    collator, _ = pair_collators(cfg, tokenizer, views, vocab_size, trim=trim)
    places = fitting_pairs(
        dataset,
        collator,
        max_seq_len=cfg.max_seq_len,
        num_positions=num_positions,
        skip_too_long=cfg.skip_too_long,
    )
    return collator, torch.tensor(places, dtype=torch.int64)
