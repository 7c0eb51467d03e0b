"""Examples of predictions, chosen by a rule, with what is wrong in them marked."""

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher

import pandas as pd

# Text and what is the matter with it.
Marked = list[tuple[str, str]]
SAME, WRONG, EXTRA, MISSING = "same", "wrong", "extra", "missing"
_MARKS = {"equal": SAME, "replace": WRONG, "insert": EXTRA, "delete": MISSING}


def choose_examples(
    candidates: pd.DataFrame, groups: Sequence[str], quota: Mapping[bool, int]
) -> pd.DataFrame:
    """Some of many examples, by a rule that looks at no text.

    A target is shown once, at its first candidate. In order of ``quota``, groups take
    turns: the first candidate of every group, then the second, until the number is reached.

    Args:
        candidates (pd.DataFrame): in the order in which they are preferred; columns
            ``group``, ``right`` (bool) and ``target``.
        groups (Sequence[str]): the groups, in order.
        quota (Mapping[bool, int]): most examples of each value of ``right``.

    Returns:
        pd.DataFrame: the chosen rows, in order of groups, then as they were taken.
    """
    if candidates.empty:
        return candidates
    unlike = candidates.drop_duplicates("target")
    order = unlike.assign(
        rank=unlike["right"].map(list(quota).index),
        turn=unlike.groupby(["right", "group"]).cumcount(),
        place=unlike["group"].map(list(groups).index),
    ).sort_values(["rank", "turn", "place"])
    taken = order[order.groupby("rank").cumcount() < order["right"].map(quota)]
    taken = taken.sort_values("place", kind="stable")
    return taken.drop(columns=["rank", "turn", "place"])


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
        ("".join(gold[a:b] if change == "delete" else answer[c:d]), _MARKS[change])
        for change, a, b, c, d in changes
    ]
