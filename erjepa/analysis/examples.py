"""Examples of predictions, chosen by a rule, with what is wrong in them marked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

# Text and what is the matter with it.
Marked = list[tuple[str, str]]
SAME, WRONG, EXTRA, MISSING = "same", "wrong", "extra", "missing"
_MARKS = {"equal": SAME, "replace": WRONG, "insert": EXTRA, "delete": MISSING}


@dataclass(frozen=True)
class Choice:
    """A chosen example.

    Args:
        group (str): what kind of error the baseline makes.
        seed (int): the seed.
        index (int): index of the example.
    """

    group: str
    seed: int
    index: int


def choose_examples(
    baseline: Mapping[int, Sequence[str]],
    improved: Mapping[int, Sequence[str]],
    targets: Sequence[str],
    groups: Sequence[str],
    correct: str,
    per_group: int,
) -> list[Choice]:
    """Errors of a baseline that another method corrects, by a rule that looks at no text.

    For each group of errors: seeds in the order given, within a seed the examples in
    order, the first ones whose target has not been chosen before.

    Args:
        baseline (Mapping[int, Sequence[str]]): seed to the group of each prediction.
        improved (Mapping[int, Sequence[str]]): the same of the method that corrects.
        targets (Sequence[str]): the target of each example.
        groups (Sequence[str]): the groups of errors, in order.
        correct (str): the group of predictions that are right.
        per_group (int): most examples of a group.

    Returns:
        list[Choice]: in order of groups.
    """
    chosen: list[Choice] = []
    for group in groups:
        enough = len(chosen) + per_group
        for seed in (seed for seed in baseline if seed in improved):
            pairs = zip(baseline[seed], improved[seed], strict=True)
            for index, outcome in enumerate(pairs):
                shown = {targets[choice.index] for choice in chosen}
                if (
                    len(chosen) < enough
                    and outcome == (group, correct)
                    and targets[index] not in shown
                ):
                    chosen.append(Choice(group, seed, index))
    return chosen


def mark_differences(
    target: str, output: str, tokens: Callable[[str], Sequence[str]]
) -> Marked:
    """An output with what differs from the target: wrong, extra and missing parts.

    Args:
        target (str): what was asked for.
        output (str): what was generated.
        tokens (Callable[[str], Sequence[str]]): splits either into parts that join to it.

    Returns:
        Marked: parts of the output in order; where something is missing, that of the target.
    """
    gold, answer = list(tokens(target)), list(tokens(output))
    changes = SequenceMatcher(None, gold, answer, autojunk=False).get_opcodes()
    return [
        (
            "".join(gold[a:b] if change == "delete" else answer[c:d]),
            _MARKS[change],
        )
        for change, a, b, c, d in changes
    ]
