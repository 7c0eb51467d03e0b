"""Building of the datasets of a config, and their names."""

import re
from collections.abc import Iterable
from functools import reduce
from operator import add
from pathlib import PurePath

from torchtune.modules.transforms import Transform

from erjepa.configs.component import Component, Components, components
from erjepa.datasets.paired import PairedDataset


def build_dataset(
    section: Components, tokenizer: Transform, key: str = "dataset"
) -> PairedDataset:
    """Build the pairs of a config's ``dataset``: one component, or a list of them to concatenate.

    Raises:
        ValueError: naming ``key``, if a builder returns something other than pairs.
    """
    built = []
    for part in components(section):
        dataset = part.build(tokenizer)
        count = len(dataset) if hasattr(dataset, "__len__") else 0
        if not (count and isinstance(dataset, PairedDataset)):
            what = type(dataset[0]).__name__ if count else "nothing"
            raise ValueError(
                f"{key}: its builder returned a {type(dataset).__name__} of {what}, not of "
                "pairs. Pairs come from erjepa.datasets.paired_dataset, or from a builder "
                "that returns an erjepa.datasets.PairedDataset"
            )
        dataset.names = [dataset_name(part)] * len(dataset.names)
        built.append(dataset)
    return reduce(add, built)


def dataset_name(dataset: Component) -> str:
    """Return the name of a dataset, by which memories know it.

    It is its ``source``, with its ``subset`` or ``name`` there, as in ``data/nl_rx(subset=turk)``.
    Without a source, it is its builder with all plain arguments.
    """
    source = dataset.arguments.get("source")
    values = [
        f"{key}={'+'.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in dataset.arguments.items()
        if isinstance(value, (str, int, list))
        and (source is None or key in ("subset", "name"))
    ]
    name = str(source or dataset.name)
    return f"{name}({', '.join(values)})" if values else name


def origin_labels(names: Iterable[str]) -> list[str]:
    """Return short, distinct labels for metrics, from the names of datasets.

    ``data/my pairs.jsonl`` becomes ``my_pairs``, a second one ``my_pairs_2``, and
    ``spider_dataset(split=train)`` becomes ``spider``.
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
