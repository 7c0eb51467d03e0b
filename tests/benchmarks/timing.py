"""Interleaved timing, which is robust on a noisy machine, and the rows of a benchmark's table."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from tests.benchmarks.device import ON_GPU, synchronize

GIB = 2**30


class Row(NamedTuple):
    """One figure of a benchmark.

    Args:
        name (str): what was measured.
        value (float): the figure.
        unit (str): its unit, "" for a ratio.
        spread (float | None): half the distance between the quartiles, in ``unit``;
            ``None`` for a count.
        target (str): what the figure is to be, "" if nothing.
        note (str): what explains the figure, such as token counts.
    """

    name: str
    value: float
    unit: str
    spread: float | None = None
    target: str = ""
    note: str = ""


class Times(NamedTuple):
    """Seconds of each repeat; repeats of several functions are paired by index."""

    seconds: list[float]

    @property
    def median(self) -> float:
        """Median, seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, seconds."""
        return half_quartiles(self.seconds)

    def row(self, name: str, *, target: str = "", note: str = "") -> Row:
        """The median in milliseconds."""
        return Row(name, 1e3 * self.median, "ms", 1e3 * self.spread, target, note)


def interleave(
    functions: Mapping[str, Callable[[], object]], *, repeats: int, warmup: int = 1
) -> dict[str, Times]:
    """Time functions in turns, so that what else the machine does falls on all of them.

    The order is another in every turn, since a call pays for what the one before it left in
    caches and in the allocator.

    Args:
        functions (Mapping[str, Callable[[], object]]): what to call, by name.
        repeats (int): measured calls of each.
        warmup (int): calls of each before them.

    Returns:
        dict[str, Times]: by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    names, order = list(functions), random.Random(0)
    for repeat in range(warmup + repeats):
        order.shuffle(names)
        for name in names:
            synchronize()
            start = time.perf_counter()
            functions[name]()
            synchronize()
            if repeat >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: Times(values) for name, values in seconds.items()}


def ratio(
    name: str, over: Times, under: Times, *, target: str = "", note: str = ""
) -> Row:
    """``over / under``, the median of the ratios of paired repeats."""
    ratios = [a / b for a, b in zip(over.seconds, under.seconds, strict=True)]
    return Row(
        name, statistics.median(ratios), "", half_quartiles(ratios), target, note
    )


def reset_peak_memory() -> None:
    """Free what an earlier model has left, and forget its peak."""
    gc.collect()
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()


def peak_memory(name: str, **more: str) -> list[Row]:
    """Most memory that was allocated on the GPU since the peak was reset; nothing on a CPU."""
    if not ON_GPU:
        return []
    peak = torch.cuda.max_memory_allocated() / GIB
    return [Row(f"{name}: allocated", peak, "GiB", **more)]


def half_quartiles(values: list[float]) -> float:
    """Half the distance between the first and the third quartile."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / 2
