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
    between: Mapping[int, Sequence[str]],
    improved: Mapping[int, Sequence[str]],
    targets: Sequence[str],
    groups: Sequence[str],
    correct: str,
    right: int,
    wrong: int,
) -> list[Choice]:
    """Errors of a baseline that another method corrects, by a rule that looks at no text.

    A group's candidates come seed by seed in the order given, within a seed in the order of
    examples. First ``right`` are taken that the method between has right, then ``wrong``
    that it has wrong; each time the groups take turns, and give their first candidate whose
    target has not been taken.

    Args:
        baseline (Mapping[int, Sequence[str]]): seed to the group of each prediction.
        between (Mapping[int, Sequence[str]]): the same of the method with the quota.
        improved (Mapping[int, Sequence[str]]): the same of the method that corrects.
        targets (Sequence[str]): the target of each example.
        groups (Sequence[str]): the groups of errors, in order.
        correct (str): the group of predictions that are right.
        right (int): most examples that the method between has right.
        wrong (int): most examples that it has wrong.

    Returns:
        list[Choice]: in order of groups, then as they were taken.
    """
    chosen: list[Choice] = []
    taken: set[str] = set()
    for is_right, most in ((True, right), (False, wrong)):
        candidates = {
            group: [
                Choice(group, seed, index)
                for seed in baseline
                for index, outcome in enumerate(
                    zip(baseline[seed], between[seed], improved[seed], strict=True)
                )
                if outcome[0] == group
                and (outcome[1] == correct) == is_right
                and outcome[2] == correct
            ]
            for group in groups
        }
        enough = len(chosen) + most
        while len(chosen) < enough and any(candidates.values()):
            for queue in candidates.values():
                while queue and targets[queue[0].index] in taken:
                    queue.pop(0)
                if queue and len(chosen) < enough:
                    chosen.append(queue.pop(0))
                    taken.add(targets[chosen[-1].index])
    return sorted(chosen, key=lambda choice: groups.index(choice.group))


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
