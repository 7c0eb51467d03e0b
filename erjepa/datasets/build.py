"""Building of the datasets of a config, and their names."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from inspect import signature
from operator import add
from pathlib import PurePath

from torchtune.modules.transforms import Transform

from erjepa.configs.component import Component, Components, components
from erjepa.datasets.paired import PairedDataset
from erjepa.datasets.records import only_locating


def build_dataset(
    section: Components, tokenizer: Transform, key: str = "dataset"
) -> PairedDataset:
    """Build the pairs of a config's ``dataset``: one component, or a list of them to concatenate.

    Raises:
        ValueError: naming ``key``, if an argument of a builder is invalid, or if it returns no
            pairs or something other than pairs.
    """
    built = []
    for place, part in _places(section, key):
        dataset = _build(part, tokenizer, place)
        count = len(dataset) if hasattr(dataset, "__len__") else 0
        if not count and isinstance(dataset, PairedDataset):
            raise ValueError(f"{place}: its builder returned no pairs")
        if not isinstance(dataset, PairedDataset):
            what = type(dataset[0]).__name__ if count else "nothing"
            raise ValueError(
                f"{place}: its builder returned a {type(dataset).__name__} of {what}, not of "
                "pairs. Pairs come from erjepa.datasets.paired_dataset, or from a builder "
                "that returns an erjepa.datasets.PairedDataset"
            )
        dataset.names = [dataset_name(part)] * len(dataset.names)
        built.append(dataset)
    return reduce(add, built)


def require_sources(section: Components, key: str = "dataset") -> None:
    """Check a section before :func:`build_dataset` reads it, as far as this project's own builders
    do before they read a record: a source that is a path exists, and arguments are valid.

    Raises:
        FileNotFoundError: if there is no such file or folder.
        ValueError: naming ``key``, if an argument of a builder is invalid.
    """
    for place, part in _places(section, key):
        is_own = part.function.__module__.startswith("erjepa.")
        if is_own and part.takes("source"):
            with only_locating():
                _build(part, None, place)


def _places(section: Components, key: str) -> Iterator[tuple[str, Component]]:
    for i, part in enumerate(components(section)):
        yield f"{key}[{i}]" if isinstance(section, list) else key, part


def _build(part: Component, tokenizer: Transform | None, place: str) -> PairedDataset:
    """Call a builder, which reads a record before it uses the tokenizer. Its errors name the
    arguments ``dataset.NAME``; those raised here name them ``place.NAME``.
    """
    try:
        return part.build(tokenizer)
    except (ValueError, OSError) as error:
        names = "|".join({*signature(part.function).parameters, *part.arguments})
        section = re.compile(rf"\bdataset(?=\.({names})\b|=)")
        error.args = tuple(
            section.sub(place, arg) if isinstance(arg, str) else arg
            for arg in error.args
        )
        raise


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


def numbered(names: Sequence[str]) -> list[str]:
    """Number repeated names of datasets: ``a``, ``b (1)``, ``b (2)``."""
    return [
        f"{name} ({names[: i + 1].count(name)})" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]


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
