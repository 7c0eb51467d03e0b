"""Exact match, for your own pairs: an answer is right if it is the target, character by character.

White space around either text is ignored; an empty answer is wrong. Both are compared in Unicode's
form NFC, as some tokenizers, such as Qwen's, can only read and write texts in that form.
"""

from unicodedata import normalize

from erjepa.tasks.task import Task, Verdicts, one_by_one


def _verdicts(target: str, output: str) -> Verdicts:
    answer, expected = (normalize("NFC", text.strip()) for text in (output, target))
    return {"exact_match": answer == expected != ""}


TASK = Task(
    name="exact_match",
    primary="exact_match",
    extract=str.strip,
    score=one_by_one(_verdicts),
)
