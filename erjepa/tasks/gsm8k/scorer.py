r"""GSM8K: the number after ``####`` at the end of a worked solution.

Verdicts:

- ``exact_match``: the answer is the reference answer, character by character, as in the
  ER-JEPA paper.
- ``number_match``: both are the same number in any notation: ``1,000``, ``$18``, ``18%``,
  ``18.``, ``18.00``, ``18 dollars``. An answer with a second number is not a number:
  ``3/4``, ``5 dollars 20``.
- ``llm_jepa``: the result of LLM-JEPA's scorer, for comparison with its published numbers.

Faults of LLM-JEPA's scorer; ``llm_jepa`` reproduces all but the first two:

- It generates at most 128 tokens, which cuts off 43% of GSM8K's own solutions before their
  answer. Evaluate with a larger ``max_new_tokens``.
- Two texts without an answer count as equal; here a text without an answer is wrong.
- It requires a line before the answer, so an output of only ``#### 18`` is wrong.
- It accepts nothing after the answer, so ``#### 18`` followed by another line is wrong.
- It compares strings: 14 of the 1319 reference answers have commas, and ``1000`` for
  ``1,000`` is wrong.
"""

import re
from decimal import Decimal

from erjepa.tasks.task import Task, Verdicts, one_by_one, without_end

_THOUSANDS = re.compile(r"(?<=[0-9])[, \u00a0\u202f](?=[0-9]{3}(?![0-9]))")
# Symbols, sign, symbols, digits, then anything without digits: "$18.", "-$5", "**18** eggs".
_NUMBER = re.compile(
    r"[^\w.+−–-]*(?:([+−–-])[^\w.+−–-]*)?([0-9]+(?:\.[0-9]+)?|\.[0-9]+)[^0-9]*"
)
_LLM_JEPA = re.compile(r"\n#### (.+)$")


def extract(output: str) -> str:
    """Return the rest of the line after the last ``####``, or "" if there is none."""
    _, marker, answer = output.rpartition("####")
    return answer.partition("\n")[0].strip() if marker else ""


def read_number(answer: str) -> Decimal | None:
    """Return the only number in an answer, or ``None`` if it has none or several."""
    match = _NUMBER.fullmatch(_THOUSANDS.sub("", answer))
    if match is None:
        return None
    sign, digits = match.groups()
    # copy_negate, as unary minus would round to the 28 digits of decimal's context.
    return Decimal(digits).copy_negate() if sign in ("-", "−", "–") else Decimal(digits)


def _problem(target: str) -> str | None:
    if extract(target):
        return None
    return (
        "gsm8k needs a target with its answer after '####', but this one ends with "
        f"{target[-40:]!r}; set task=exact_match for bare answers"
    )


def _verdicts(target: str, output: str) -> Verdicts:
    answer, expected = extract(output), extract(target)
    number = read_number(answer)
    theirs = _LLM_JEPA.search(without_end(output))
    reference = _LLM_JEPA.search(target)
    return {
        "exact_match": answer != "" and answer == expected,
        "number_match": number is not None and number == read_number(expected),
        "llm_jepa": bool(theirs and reference and theirs[1] == reference[1]),
    }


TASK = Task(
    name="gsm8k",
    primary="exact_match",
    extract=extract,
    score=one_by_one(_verdicts),
    problem=_problem,
)
