"""Parameters of tests: devices, and a quick subset of many cases."""

from collections.abc import Collection, Iterable

import pytest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def some_of(names: Iterable[str], quick: Collection[str]) -> list:
    """Parameters of a test; all except the ``quick`` ones are marked slow."""
    names = list(names)
    assert set(quick) <= set(names), f"no such cases: {set(quick) - set(names)}"
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]
