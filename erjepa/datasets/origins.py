"""What the datasets of a run are called where each has numbers of its own."""

import re
from collections.abc import Sequence
from pathlib import PurePath


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
