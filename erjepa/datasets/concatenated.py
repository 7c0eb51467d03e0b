"""Concatenation of several datasets."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from operator import add
from pathlib import PurePath
from typing import Any

from torch.utils.data import Dataset
from torchtune.data import Message
from torchtune.modules.transforms import Transform

from erjepa.configs.component import Components, components
from erjepa.datasets.paired import PairedDataset
from erjepa.datasets.pairs import Pair, require_pairs


def origin_labels(names: Sequence[str]) -> list[str]:
    """Return short, distinct names for metrics, from the sources or builders of datasets.

    ``data/my pairs.jsonl`` becomes ``my_pairs``, a second one ``my_pairs_2``, and
    ``spider_dataset`` becomes ``spider``.
    """
    labels: list[str] = []
    for name in names:
        stem = PurePath(name.partition("(")[0]).stem
        label = re.sub(r"\W+", "_", stem).strip("_").removesuffix("_dataset")
        label, number = label or "dataset", 2
        distinct = label
        while distinct in labels:
            distinct, number = f"{label}_{number}", number + 1
        labels.append(distinct)
    return labels


class ConcatenatedPairs(Dataset):
    """Concatenation of datasets; without weights, an epoch has each pair once.

    Example ids continue from one dataset to the next, so a replayed pair keeps its origin.

    Attributes:
        labels: short names of the datasets, see :func:`origin_labels`.
    """

    def __init__(self, parts: Sequence[PairedDataset], names: Sequence[str]) -> None:
        self.parts = list(parts)
        self.pairs = reduce(add, (part.pairs for part in parts))
        self.names = list(names)
        self.labels = origin_labels(names)
        self._starts = [0, *accumulate(map(len, parts))]

    @property
    def task(self) -> str:
        """The task that scores answers unless the config names one.

        Raises:
            ValueError: if the datasets have different tasks.
        """
        tasks = {part.task: None for part in self.parts}
        if len(tasks) > 1:
            raise ValueError(
                f"the datasets are scored by different tasks, {', '.join(tasks)}; set task "
                "to the one for all, or score each dataset on its own: a run of erjepa_eval "
                "for each, with that one as eval_dataset"
            )
        return self.parts[0].task

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, example_id: int) -> Pair:
        return self.pairs[example_id]

    def origin(self, example_id: int) -> int:
        """Return the index of the dataset of example ``example_id``."""
        return bisect_right(self._starts, example_id) - 1

    def where(self, example_id: int) -> str:
        """Return file and line (or dataset and row) of example ``example_id``."""
        part, i = self._part(example_id)
        return part.where(i)

    def messages(self, example_id: int) -> list[Message]:
        """Return the chat of an example; the last message is the target."""
        part, i = self._part(example_id)
        return part.messages(i)

    def prompt(self, example_id: int) -> list[int]:
        """Return the token ids of the prompt for the target of an example."""
        part, i = self._part(example_id)
        return part.prompt(i)

    def ask(self, text: str, system_prompt: str | None = None) -> list[int]:
        """See :meth:`PairedDataset.ask`; the first dataset decides."""
        return self.parts[0].ask(text, system_prompt)

    def pair_of(self, text: str, system_prompt: str | None = None) -> Pair:
        """See :meth:`PairedDataset.pair_of`; the first dataset decides."""
        return self.parts[0].pair_of(text, system_prompt)

    def target_text(self, example_id: int) -> str:
        """Return the target as in the record, without surrounding white space."""
        part, i = self._part(example_id)
        return part.target_text(i)

    def source_text(self, example_id: int) -> str:
        """Return the last user message as in the record, without surrounding white space."""
        part, i = self._part(example_id)
        return part.source_text(i)

    def scoring_fields(self, example_id: int) -> dict[str, Any]:
        """Return the fields besides the target that are needed to score an answer."""
        part, i = self._part(example_id)
        return part.scoring_fields(i)

    def _part(self, example_id: int) -> tuple[PairedDataset, int]:
        index = self.origin(example_id)
        return self.parts[index], example_id - self._starts[index]


# What a run trains on.
Pairs = PairedDataset | ConcatenatedPairs


def build_dataset(
    section: Components, tokenizer: Transform, key: str = "dataset"
) -> Pairs:
    """Build the pairs of a config's ``dataset``: one component, or a list of them.

    Returns:
        For a list, :class:`ConcatenatedPairs`, named by the ``source`` of each dataset, or by its
        builder if it has none.

    Raises:
        ValueError: if a builder returns something other than pairs.
    """
    parts = components(section)
    built = [part.build(tokenizer) for part in parts]
    for dataset in built:
        require_pairs(key, dataset)
    if not isinstance(section, list):
        return built[0]
    return ConcatenatedPairs(built, [part.get("source") or part.name for part in parts])
