"""NQ-Open: short answers to questions; the target joins all right answers by ``"; "``.

Verdicts:

- ``exact_match``: the answer is the target or one of its aliases, character by character.
- ``squad_match``: the same after SQuAD's normalization: lower case, single spaces, without
  punctuation and without the articles a, an and the.
- ``llm_jepa``: the result of LLM-JEPA's scorer, for comparison with its published numbers.

LLM-JEPA's scorer splits the output at ``"; "`` and accepts it if any part is a substring of the
target. So an empty answer is right for every question, ``"e"`` for 70% of the test set, and
``"no idea; a"`` wherever ``"a"`` is. In ``exact_match`` and ``squad_match`` an empty answer is
wrong.
"""

import re
import string

from erjepa.tasks.task import Task, Verdicts, one_by_one, without_end

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accepted(target: str) -> list[str]:
    """Return the right answers: the aliases in the target, and the whole target."""
    return [*target.split("; "), target]


def normalize(answer: str) -> str:
    """Return SQuAD's normal form of an answer, or if that is empty the lower-case answer.

    "/" and "The The" are answers; as empty strings they would be equal.
    """
    lower = answer.lower()
    bare = _ARTICLES.sub(" ", lower.translate(_WITHOUT_PUNCTUATION))
    return " ".join(bare.split()) or lower


def _verdicts(target: str, output: str) -> Verdicts:
    answer, aliases = output.strip(), accepted(target.strip())
    return {
        "exact_match": answer != "" and answer in aliases,
        "squad_match": answer != "" and normalize(answer) in map(normalize, aliases),
        "llm_jepa": any(part in target for part in without_end(output).split("; ")),
    }


TASK = Task(
    name="nq_open",
    primary="exact_match",
    extract=str.strip,
    score=one_by_one(_verdicts),
)
