"""Exact match: an answer is right when it is the target, character by character.

For pairs of one's own. White space around either text does not count; an empty answer is
wrong.
"""

from collections.abc import Sequence

from erjepa.tasks.task import Prediction, Task, Verdicts


def extract(output: str) -> str:
    """The whole text, without surrounding white space."""
    return output.strip()


def _score(predictions: Sequence[Prediction]) -> list[Verdicts]:
    return [
        {"exact_match": extract(p["output"]) == p["target"].strip() != ""}
        for p in predictions
    ]


TASK = Task(name="exact_match", primary="exact_match", extract=extract, score=_score)
