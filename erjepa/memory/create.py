"""Makes a memory from a dataset, without a run: python -m erjepa.memory create OUT.

Pairs of a config's dataset are drawn at random, tokenized as its runs do. ``replay.init_from=OUT``
starts a run with them. All have the score 1; none has an address.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from torchtune import config

from erjepa.checkpoints.checkpoint import MEMORY
from erjepa.checkpoints.manifest import write_manifest
from erjepa.checkpoints.memory_file import write_memory, write_texts
from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.configs import complete, load, prepare
from erjepa.datasets import ConcatenatedPairs, build_dataset
from erjepa.memory.reading import CONFIG
from erjepa.replay import EpisodicReplay, ReplaySettings
from erjepa.replay.retention import ORIGIN_BITS
from erjepa.training.run_memory import name_of, origin_of
from erjepa.utils.command_line import CommandLine


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    parser = CommandLine(prog="python -m erjepa.memory create", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    parser.add_argument("overrides", metavar="key=value", nargs="*")
    parser.add_argument(
        "--config", required=True, metavar="NAME", help="config of the run to come"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--number", type=int, metavar="N", help="of pairs (all)")
    size.add_argument("--share", type=float, metavar="S", help="of the pairs, 0 to 1")
    asked = parser.parse_intermixed_args(arguments)
    with parser.errors(asked):
        prepare()
        cfg = complete(load(asked.config, asked.overrides))
        count, size_of_all = create(asked.out, cfg, asked.number, asked.share)
        print(
            f"{count} of {size_of_all} pairs are in {asked.out}. Start a run with "
            f"replay.init_from={asked.out}"
        )


def create(
    out: Path, cfg: DictConfig, number: int | None = None, share: float | None = None
) -> tuple[int, int]:
    """Make a memory of pairs drawn at random, by the config's seed.

    Args:
        out: a folder that is not there yet.
        cfg: config of a run: its dataset, tokenizer and seed, and ``replay.score``.
        number: of pairs; ``None``: all, or a share.
        share: of the pairs that are drawn.

    Returns:
        How many pairs it has, and of how many.

    Raises:
        FileExistsError: if ``out`` is there.
        ValueError: if there are not so many pairs.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists; choose another folder for the memory")
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"--share {share}: must be above 0 and at most 1")
    tokenizer = config.instantiate(cfg.tokenizer)
    dataset = build_dataset(cfg.dataset, tokenizer)
    if number is None:
        number = max(round(len(dataset) * (1.0 if share is None else share)), 1)
    if not 1 <= number <= len(dataset):
        raise ValueError(
            f"--number {number}: must be at least 1 and at most {len(dataset)}, the "
            "pairs of the dataset"
        )
    generator = torch.Generator().manual_seed(cfg.seed or 0)
    drawn = torch.randperm(len(dataset), generator=generator)[:number].sort().values
    score = (cfg.replay or {}).get("score", "jepa")
    settings = ReplaySettings(
        capacity=number, selection="uniform", address="none", score=score
    )
    replay = EpisodicReplay(settings, embed_dim=1, seed=cfg.seed or 0)
    segments = [dataset[i].segments for i in drawn.tolist()]
    origins, names = origin_of(dataset), [name_of(cfg.dataset)]
    ids = drawn if origins is None else origins[drawn] << ORIGIN_BITS | drawn
    if isinstance(dataset, ConcatenatedPairs):
        names = dataset.names
    replay.write(ids, segments, None, torch.ones(number))

    texts = PairTexts(tokenizer)
    aside = out.with_name(f".{out.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    about = {
        "tokenizer": texts.fingerprint,
        "origins": names,
        "inherited": 0,
        "replay": asdict(settings),
    }
    write_memory(aside / MEMORY, replay, about)
    where = dict(zip(ids.tolist(), map(dataset.where, drawn.tolist()), strict=True))
    write_texts(aside / MEMORY, replay.memory, texts, where.__getitem__)
    OmegaConf.save(cfg, aside / CONFIG)
    write_manifest(aside)
    os.rename(aside, out)
    return number, len(dataset)
