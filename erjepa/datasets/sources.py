"""Where the records of a split are, and which of them to keep."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

Item = TypeVar("Item")

# The folder where LLM-JEPA keeps its splits, at a fixed revision so that a run can be
# repeated.
LLM_JEPA_DATASETS = (
    "https://raw.githubusercontent.com/rbalestr-lab/llm-jepa/"
    "dd6196630f97016f7a607b0ac74f5e378ddf25db/datasets"
)


def locate(source: str, name: str, split: str) -> str:
    """The file of a split, if ``source`` is a place of files; else ``source``.

    Args:
        source: a ``.jsonl`` file or URL, a folder with ``{split}.jsonl`` or
            ``{name}_{split}.jsonl``, a URL of a folder with the latter, or a dataset of the hub.

    Raises:
        FileNotFoundError: if ``source`` is a path where no such file is.
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
    # A name on the hub is relative; without this its errors would speak of repositories.
    if source.startswith(("/", ".")) and not Path(source).exists():
        raise FileNotFoundError(f"dataset.source={source}: no such file or folder")
    return source


def subsample(
    items: Sequence[Item],
    size: int | None,
    seed: int | None,
    group: Callable[[Item], Hashable] | None = None,
) -> Sequence[Item]:
    """Some of the items, in their order; a larger size keeps the choice of a smaller one.

    Args:
        size: how many to keep; ``None``, or more than there are: all.
        seed: of a random choice; ``None``: the first ones.
        group: of an item; as many are kept of each, as far as there are.

    Raises:
        ValueError: if ``size`` is less than 1, or missing where there is a seed.
    """
    if size is None:
        if seed is not None:
            raise ValueError(f"sample_seed={seed} needs max_examples")
        return items
    if size < 1:
        raise ValueError(f"max_examples={size} must be at least 1")
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
