"""Exact match, for your own pairs: an answer is right if it is the target, character by character.

White space around either text is ignored; an empty answer is wrong.
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
