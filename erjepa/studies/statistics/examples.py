"""Which examples a report shows."""

from collections.abc import Mapping, Sequence

import pandas as pd


def choose_examples(
    candidates: pd.DataFrame, groups: Sequence[str], quota: Mapping[bool, int]
) -> pd.DataFrame:
    """Some of many examples, by a rule that looks at no text.

    ``candidates`` are in the order in which they are preferred, with columns ``group``,
    ``right`` (bool) and ``target``; a target is shown once, at its first candidate. ``quota``
    has the most examples of each value of ``right``. Groups take turns: the first candidate
    of every group, then the second, until the number is reached. The chosen rows are in order
    of groups, then as they were taken.
    """
    unlike = candidates.drop_duplicates("target")
    turn = unlike.groupby(["right", "group"]).cumcount()
    place = unlike["group"].map(list(groups).index)
    order = unlike.assign(turn=turn, place=place).sort_values(["turn", "place"])
    taken = [order[order["right"] == right].head(n) for right, n in quota.items()]
    return pd.concat(taken).sort_values("place", kind="stable")
