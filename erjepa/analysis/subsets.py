"""Accuracy by structure and by length of the target regex."""

from collections.abc import Callable, Iterable, Sequence

from erjepa.analysis.regex_tokens import (
    LENGTH_GROUPS,
    STRUCTURES,
    length_group,
    structures,
)

# Name of a subset to how many of its examples are right, and how many it has.
Shares = dict[str, tuple[int, int]]


def accuracy_by_structure(targets: Sequence[str], correct: Sequence[bool]) -> Shares:
    """Right and all examples of each structural subset; subsets overlap.

    Args:
        targets (Sequence[str]): target regexes.
        correct (Sequence[bool]): whether each prediction is right.

    Returns:
        Shares: of every one of ``STRUCTURES``.
    """
    return _shares(STRUCTURES, structures, targets, correct)


def accuracy_by_length(targets: Sequence[str], correct: Sequence[bool]) -> Shares:
    """Right and all examples of each of ``LENGTH_GROUPS``; arguments as above."""
    return _shares(LENGTH_GROUPS, lambda one: [length_group(one)], targets, correct)


def _shares(
    names: Sequence[str],
    subsets_of: Callable[[str], Iterable[str]],
    targets: Sequence[str],
    correct: Sequence[bool],
) -> Shares:
    right, total = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for target, is_right in zip(targets, correct, strict=True):
        for name in subsets_of(target):
            right[name] += bool(is_right)
            total[name] += 1
    return {name: (right[name], total[name]) for name in names}
