"""The memory as one self-contained page: charts, and a table that sorts and filters."""

import json
from importlib import resources
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd

from erjepa.commands.memory.show import largest_first
from erjepa.commands.memory.trajectories import Contents
from erjepa.utils.escape import counted

_BINS = 10
_DECADES = 4  # of a logarithmic axis; its first bin also has all smaller values
_MOST_ROWS = 20_000
_COLUMNS = [
    *("slot", "origin", "where", "source", "target", "score", "replay_count"),
    *("error", "forgotten", "flags"),
]


def page(memory: Contents) -> str:
    """Return the HTML page of a memory; its table has at most the 20,000 slots with the largest
    scores.
    """
    slots = largest_first(memory.slots, "score").head(_MOST_ROWS)
    logged = memory.examples[["error", "forgotten"]].astype(object)
    logged = logged.reindex(slots.example, fill_value="").set_index(slots.index)
    rows = slots.join(logged)[_COLUMNS].map(_shown)
    if all(map(str.startswith, rows["where"], rows.origin)):
        rows = rows.drop(columns="origin")
    rows = rows.loc[:, (rows != "").any()]
    counts = memory.slots.sort_values("example").groupby("origin", sort=False).size()
    origins = ", ".join(f"{count} of {name}" for name, count in counts.items())
    folder = memory.stored.folder.resolve().parent
    data = {
        "title": f"Memory of {folder.parent.name}/{folder.name}",
        "about": f"{counted(len(memory.slots), 'pair')}: {origins}",
        "columns": [*rows],
        "rows": rows.astype(object).to_numpy().tolist(),
        "charts": _charts(memory),
    }
    template = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    # Data that contains </script> must not end the script element.
    return template.replace(
        "DATA", json.dumps(data, allow_nan=False).replace("<", "\\u003c"), 1
    )


def _shown(value: Any) -> Any:
    """Return a cell, with NaN and infinity as text: JSON has neither."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _charts(memory: Contents) -> list[dict[str, Any]]:
    charts = [
        _histogram("Slots by score", memory.slots.score, is_log=True),
        _histogram("Slots by replay count", memory.slots.replay_count),
    ]
    steps = memory.visits.step
    is_replay = memory.visits.replayed == 1
    is_inherited = memory.visits.example < 0
    for title, wanted in {
        "Replays by step": is_replay,
        "Replays of inherited pairs by step": is_replay & is_inherited,
    }.items():
        if wanted.any():
            charts.append(_histogram(title, steps[wanted], (1, steps.max())))
    return charts


def _histogram(
    title: str,
    values: pd.Series,
    ends: tuple[int, int] | None = None,
    *,
    is_log: bool = False,
) -> dict[str, Any]:
    low, high = ends or (min(values, default=0), max(values, default=0))
    if pd.api.types.is_integer_dtype(values):
        width = -(-(int(high - low) + 1) // _BINS)
        edges = np.arange(low, high + width + 1, width)
        labels = [
            str(a) if width == 1 else f"{a} to {a + width - 1}" for a in edges[:-1]
        ]
    elif low == high:
        edges, labels = np.array([low, low + 1]), [f"{low:.3g}"]
    else:
        edges = np.linspace(low, high, _BINS + 1)
        if is_log and high > 0:
            low = max(low, high / 10**_DECADES)
            edges = np.geomspace(low, high, _BINS + 1)
            title += ", logarithmic"
        labels = [f"{a:.2g} to {b:.2g}" for a, b in pairwise(edges)]
    heights, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return {"title": title, "heights": heights.tolist(), "labels": labels}
