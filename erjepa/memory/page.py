"""The memory as one self-contained page: charts, and a table that sorts and filters."""

import json
from collections.abc import Sequence
from importlib import resources
from math import isfinite
from typing import Any

from erjepa.memory.suspects import Reading

_BINS = 30
_MOST_ROWS = 20_000
_COLUMNS = (
    *("slot", "origin", "where", "source", "target", "score", "replay_count"),
    *("error", "forgotten", "flags"),
)


def page(reading: Reading) -> str:
    """The HTML of a memory.

    Args:
        reading (Reading): what is in it. Above twenty thousand slots the table has those of
            the largest scores.
    """
    slots = sorted(reading.slots, key=lambda slot: -slot.score)[:_MOST_ROWS]
    rows = []
    for slot in slots:
        found = reading.found.get(slot.example)
        row = slot.row() | {
            "error": found.errors[-1] if found else "",
            "forgotten": found.forgetting_events if found else "",
        }
        rows.append([_shown(row[name]) for name in _COLUMNS])
    about = reading.stored.about
    data = {
        "about": f"{len(reading.slots)} pairs of {', '.join(dict.fromkeys(about.origins))}.",
        "columns": _COLUMNS,
        "rows": rows,
        "charts": _charts(reading),
    }
    template = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    # A text that holds </script> must not end the element that carries it.
    return template.replace(
        "DATA", json.dumps(data, allow_nan=False).replace("<", "\\u003c"), 1
    )


def _shown(value: Any) -> Any:
    """A cell; JSON has no NaN, and no infinity."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _charts(reading: Reading) -> list[dict[str, Any]]:
    charts = [
        _histogram("Slots by score", [s.score for s in reading.slots]),
        _histogram("Slots by replay count", [s.replay_count for s in reading.slots]),
    ]
    replays = [visit for visit in reading.visits if visit.replayed]
    for name, wanted in (
        ("Replays over training", replays),
        ("... of inherited pairs", [v for v in replays if v.example < 0]),
    ):
        if wanted:
            last = max(visit.step for visit in reading.visits)
            steps = [visit.step for visit in wanted]
            charts.append(_histogram(name, steps, low=1, high=last))
    return charts


def _histogram(
    title: str,
    values: Sequence[float],
    low: float | None = None,
    high: float | None = None,
) -> dict[str, Any]:
    values = [value for value in values if isfinite(value)]
    low = min(values, default=0) if low is None else low
    high = max(values, default=0) if high is None else high
    is_whole = all(isinstance(value, int) for value in values)
    bins = min(_BINS, int(high - low) + 1) if is_whole else _BINS
    width = (high - low + is_whole) / bins or 1
    heights = [0] * bins
    for value in values:
        heights[min(int((value - low) / width), bins - 1)] += 1
    edges = [low + i * width for i in range(bins)]
    labels = [f"{edge:.0f}" if is_whole else f"{edge:.3f}" for edge in edges]
    return {"title": title, "heights": heights, "labels": labels}
