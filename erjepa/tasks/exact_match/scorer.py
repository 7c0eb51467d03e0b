"""Exact match: an answer is right when it is the target, character by character.

For your own pairs. White space around either text does not count; an empty answer is
wrong.
"""

from erjepa.tasks.task import Task, Verdicts, one_by_one


def _verdicts(target: str, output: str) -> Verdicts:
    return {"exact_match": output.strip() == target.strip() != ""}


TASK = Task(
    name="exact_match",
    primary="exact_match",
    extract=str.strip,
    score=one_by_one(_verdicts),
)
