"""Several datasets as one."""

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
    """Short names of datasets by their sources or builders, for the names of metrics.

    ``data/my pairs.jsonl`` is ``my_pairs``, a second one ``my_pairs_2``, ``spider_dataset`` is
    ``spider``.
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
    """Datasets one after the other; without weights, an epoch has every pair of each once.

    Example ids continue from one dataset to the next, so a replayed pair keeps its origin.

    Attributes:
        labels: their short names, see :func:`origin_labels`.
    """

    def __init__(self, parts: Sequence[PairedDataset], names: Sequence[str]) -> None:
        self.parts = list(parts)
        self.pairs = reduce(add, (part.pairs for part in parts))
        self.names = list(names)
        self.labels = origin_labels(names)
        self._starts = [0, *accumulate(map(len, parts))]

    @property
    def task(self) -> str:
        """The task that answers are scored by where a config names none.

        Raises:
            ValueError: if the parts have several.
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
        """Which of the datasets example ``example_id`` is from."""
        return bisect_right(self._starts, example_id) - 1

    def where(self, example_id: int) -> str:
        """File and line (or dataset and row) that example ``example_id`` came from."""
        part, i = self._part(example_id)
        return part.where(i)

    def messages(self, example_id: int) -> list[Message]:
        """The chat of this example; the last message is the target."""
        part, i = self._part(example_id)
        return part.messages(i)

    def prompt(self, example_id: int) -> list[int]:
        """Token ids from which a model is to generate the target of this example."""
        part, i = self._part(example_id)
        return part.prompt(i)

    def ask(self, text: str, system_prompt: str | None = None) -> list[int]:
        """As the first dataset has it."""
        return self.parts[0].ask(text, system_prompt)

    def pair_of(self, text: str, system_prompt: str | None = None) -> Pair:
        """As the first dataset has it."""
        return self.parts[0].pair_of(text, system_prompt)

    def target_text(self, example_id: int) -> str:
        """The target as the record has it, without surrounding white space."""
        part, i = self._part(example_id)
        return part.target_text(i)

    def source_text(self, example_id: int) -> str:
        """The last user message as the record has it, without surrounding white space."""
        part, i = self._part(example_id)
        return part.source_text(i)

    def scoring_fields(self, example_id: int) -> dict[str, Any]:
        """What scoring an answer to this example needs besides its target."""
        part, i = self._part(example_id)
        return part.scoring_fields(i)

    def _part(self, example_id: int) -> tuple[PairedDataset, int]:
        """The dataset of an example, and its id there."""
        index = self.origin(example_id)
        return self.parts[index], example_id - self._starts[index]


# What a run trains on.
Pairs = PairedDataset | ConcatenatedPairs


def build_dataset(
    section: Components, tokenizer: Transform, key: str = "dataset"
) -> Pairs:
    """The pairs of a config's ``dataset``: of a component, or of a list of them.

    Returns:
        A list gives :class:`ConcatenatedPairs`, where a dataset goes by its ``source``, or else by
        the name of its builder.

    Raises:
        ValueError: if a component gives something else than pairs.
    """
    parts = components(section)
    built = [part.build(tokenizer) for part in parts]
    for dataset in built:
        require_pairs(key, dataset)
    if not isinstance(section, list):
        return built[0]
    return ConcatenatedPairs(built, [part.get("source") or part.name for part in parts])
