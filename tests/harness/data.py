"""Files of pairs: small generated ones, and the real datasets if present."""

import json
import os
import random
from array import array
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erjepa.datasets import (
    Pair,
    TokenizedPairs,
    gsm8k_dataset,
    nl_rx_dataset,
    nq_open_dataset,
    spider_dataset,
)
from erjepa.packing import PairCollator
from erjepa.utils.jsonl import read_jsonl

# The real datasets, where there are any: nl_rx/synth_train.jsonl and so on.
REAL_DATA = Path(
    os.environ.get("ERJEPA_DATA", Path(__file__).parents[2] / "shared" / "data")
)
WORDS = "a line with the word dog or truck and three vowels before some number".split()


def write_records(
    path: Path, count: int, seed: int = 0, *, words: int = 12, letters: int = 30
) -> Path:
    """``count`` chat records of different lengths with distinct sources.

    Args:
        words: maximum of a source, after its number.
        letters: maximum of a target.
    """
    rng = random.Random(seed)
    with path.open("w") as lines:
        for i in range(count):
            source = " ".join([str(i), *rng.choices(WORDS, k=rng.randint(1, words))])
            target = "".join(rng.choices("abc.*[](|)&", k=rng.randint(1, letters)))
            lines.write(json.dumps(chat(source, target, "Convert.")) + "\n")
    return path


def chat(source: str, target: str, system: str | None = None) -> dict[str, Any]:
    """A record with the messages of a pair."""
    turns = [("system", system)] if system else []
    turns += [("user", source), ("assistant", target)]
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def real_texts(name: str) -> list[tuple[str, str]]:
    """Source and target of each chat in a real file; without it the test is skipped."""
    path = REAL_DATA / name
    if not path.exists():
        pytest.skip(f"{path} is absent")
    chats = [fields["messages"] for _, fields in read_jsonl(path)]
    return [(chat[-2]["content"], chat[-1]["content"]) for chat in chats]


def tokenized_pairs(segments: Sequence[Sequence[array]]) -> TokenizedPairs:
    """The pairs of these segments, five for each pair."""
    flat = [segment for pair in segments for segment in pair]
    tokens = [token for segment in flat for token in segment]
    block = [len(segments), *map(len, flat), *tokens]
    return TokenizedPairs([np.array(block, dtype=np.int32)])


def remote_calls(
    monkeypatch: Any, file: Path, rows: Sequence[dict[str, Any]]
) -> list[Any]:
    """Record calls to the hub or to a URL, and answer each with ``rows``."""
    import datasets

    calls: list[Any] = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return rows

    def download(manager, url):
        calls.append(url)
        return write_jsonl(file, rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.DownloadManager, "download", download)
    return calls


def tokenizer_file():
    if named := os.environ.get("ERJEPA_LLAMA3_TOKENIZER"):
        return Path(named)
    try:
        package = distribution("llama-models")
    except PackageNotFoundError:
        return Path("absent")
    return Path(package.locate_file("llama_models/llama3/tokenizer.model"))


DATASETS = {
    "NL-RX-SYNTH": (nl_rx_dataset, "nl_rx", {"subset": "synth"}),
    "NL-RX-TURK": (nl_rx_dataset, "nl_rx", {"subset": "turk"}),
    "NQ-Open": (nq_open_dataset, "nq_open", {}),
    "Spider": (spider_dataset, "spider", {}),
    "GSM8K": (gsm8k_dataset, "gsm8k", {}),
}


def tokens_per_pair(pairs: Sequence[Pair], views: str, size: int) -> float:
    """Mean tokens of a pair in trees of ``size`` pairs."""
    collator = PairCollator(views=views, predictor_ids=[0])
    steps = [pairs[i : i + size] for i in range(0, len(pairs) - size + 1, size)]
    return sum(collator(step).num_tokens for step in steps) / (len(steps) * size)
