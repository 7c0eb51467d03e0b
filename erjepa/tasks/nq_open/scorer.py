"""NQ-Open: short answers to questions; the target joins all that are right by ``"; "``.

Verdicts:

- ``exact_match``: the answer is the target or one of its aliases, character by character.
- ``squad_match``: the same after SQuAD's normalisation: lower case, without punctuation,
  without the articles a, an and the, single spaces.
- ``llm_jepa``: as LLM-JEPA's scorer has it, to compare with its numbers.

LLM-JEPA's scorer cuts the output at ``"; "`` and asks whether any part is a substring of the
target. So the empty answer is right for every question, ``"e"`` for 70% of the test set, and
``"no idea; a"`` too. In ``exact_match`` and ``squad_match`` an empty answer is wrong.
"""

import re
import string

from erjepa.tasks.task import Task, Verdicts, one_by_one, without_end

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accepted(target: str) -> list[str]:
    """The answers that are right: the aliases, and the target as it is."""
    return [*target.split("; "), target]


def normalize(answer: str) -> str:
    """SQuAD's normal form; lower case alone where that leaves nothing.

    "/" and "The The" are answers; as empty texts they would equal each other.
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
