"""Location of the file of a split, and subsampling of records."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

Item = TypeVar("Item")

# LLM-JEPA's folder of splits, at a fixed revision for reproducible runs.
LLM_JEPA_DATASETS = (
    "https://raw.githubusercontent.com/rbalestr-lab/llm-jepa/"
    "dd6196630f97016f7a607b0ac74f5e378ddf25db/datasets"
)


def locate(source: str, name: str, split: str) -> str:
    """Return the file of a split if ``source`` is a folder or its URL, otherwise ``source``.

    Args:
        source: a ``.jsonl`` file or URL, a folder with ``{split}.jsonl`` or
            ``{name}_{split}.jsonl``, the URL of a folder with the latter, or a hub dataset.

    Raises:
        FileNotFoundError: if ``source`` is a folder and has no such file.
    """
    if "://" in source:
        if urlsplit(source).path.endswith(".jsonl"):
            return source
        return f"{source.rstrip('/')}/{name}_{split}.jsonl"
    if Path(source).is_dir():
        files = [Path(source) / f for f in (f"{split}.jsonl", f"{name}_{split}.jsonl")]
        for file in files:
            if file.is_file():
                return str(file)
        raise FileNotFoundError(
            f"dataset.source={source} holds neither {files[0].name} nor {files[1].name}"
        )
    return source


def subsample(
    items: Sequence[Item],
    size: int | None,
    seed: int | None,
    group: Callable[[Item], Hashable] | None = None,
) -> Sequence[Item]:
    """Return a subset of the items, in their order; it contains every smaller subset.

    Args:
        size: number of items to keep; ``None``, or more than there are: all.
        seed: seed of a random choice; ``None``: keep the first items.
        group: returns the group of an item; groups are kept in equal numbers where possible.

    Raises:
        ValueError: if ``size`` is less than 1, or there is a seed but no size.
    """
    if size is None:
        if seed is not None:
            raise ValueError(f"dataset.sample_seed={seed} needs dataset.max_examples")
        return items
    if size < 1:
        raise ValueError(f"dataset.max_examples={size} must be at least 1")
    order = list(range(len(items)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    if group is not None:
        taken: Counter[Hashable] = Counter()
        rank = {}
        for i in order:
            rank[i] = taken[key := group(items[i])]
            taken[key] += 1
        order.sort(key=rank.__getitem__)
    return [items[i] for i in sorted(order[:size])]
