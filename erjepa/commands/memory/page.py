"""The memory as one self-contained page: charts, and a table that sorts and filters."""

import json
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np

from erjepa.commands.memory.trajectories import Contents
from erjepa.utils.escape import counted

_BINS = 10
_DECADES = 4  # of a logarithmic axis; its first bin also has all smaller values
_MOST_ROWS = 20_000
_COLUMNS = (
    *("slot", "origin", "where", "source", "target", "score", "replay_count"),
    *("error", "forgotten", "flags"),
)


def page(memory: Contents) -> str:
    """Return the HTML page of a memory; its table has at most the 20,000 slots with the largest
    scores.
    """
    slots = sorted(memory.slots, key=lambda slot: -slot.score)[:_MOST_ROWS]
    rows = []
    for slot in slots:
        found = memory.found.get(slot.example)
        row = slot.row() | {
            "error": found.errors[-1] if found else "",
            "forgotten": found.forgetting_events if found else "",
        }
        rows.append([_shown(row[name]) for name in _COLUMNS])
    names_origin = all(slot.where.startswith(slot.origin) for slot in slots)
    shown = [
        i
        for i, name in enumerate(_COLUMNS)
        if any(row[i] != "" for row in rows) and not (name == "origin" and names_origin)
    ]
    counts = Counter(slot.origin for slot in memory.slots)
    origins = ", ".join(f"{count} of {name}" for name, count in counts.items())
    folder = memory.stored.folder.resolve().parent
    data = {
        "title": f"Memory of {folder.parent.name}/{folder.name}",
        "about": f"{counted(len(memory.slots), 'pair')}: {origins}",
        "columns": [_COLUMNS[i] for i in shown],
        "rows": [[row[i] for i in shown] for row in rows],
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
        _histogram("Slots by score", [s.score for s in memory.slots], is_log=True),
        _histogram("Slots by replay count", [s.replay_count for s in memory.slots]),
    ]
    replays = [visit for visit in memory.visits if visit.replayed]
    for name, wanted in (
        ("Replays by step", replays),
        ("Replays of inherited pairs by step", [v for v in replays if v.example < 0]),
    ):
        if wanted:
            last = max(visit.step for visit in memory.visits)
            steps = [visit.step for visit in wanted]
            charts.append(_histogram(name, steps, low=1, high=last))
    return charts


def _histogram(
    title: str,
    values: Sequence[float],
    low: float | None = None,
    high: float | None = None,
    *,
    is_log: bool = False,
) -> dict[str, Any]:
    values = [value for value in values if isfinite(value)]
    low = min(values, default=0) if low is None else low
    high = max(values, default=0) if high is None else high
    if all(isinstance(value, int) for value in values):
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
