r"""GSM8K: the number after ``####`` at the end of a worked solution.

Verdicts:

- ``exact_match``: the answer is the reference answer, character by character, as in the
  ER-JEPA paper.
- ``number_match``: both are the same number, however written: ``1,000``, ``$18``, ``18%``,
  ``18.``, ``18.00``, ``18 dollars``. Words around the number may not hold another one:
  ``3/4`` and ``5 dollars 20`` are no number here.
- ``llm_jepa``: as LLM-JEPA's scorer has it, to compare with its numbers.

Faults of LLM-JEPA's scorer, all but the first two kept in its verdict:

- It generates at most 128 tokens, which cuts 43% of GSM8K's own solutions before their
  answer. Evaluate with a larger ``max_new_tokens``.
- Two texts without any answer count as equal; here a text without one is wrong.
- It needs a line before the answer, so an output that is only ``#### 18`` is wrong.
- It accepts nothing after the answer, so ``#### 18`` and a further line is wrong.
- It compares texts: 14 of the 1319 reference answers have commas, and ``1000`` for
  ``1,000`` is wrong.
"""

import re
from decimal import Decimal

from erjepa.tasks.task import Task, Verdicts, one_by_one, without_end

_THOUSANDS = re.compile(r"(?<=[0-9])[, ](?=[0-9]{3}(?![0-9]))")
# Symbols, sign, symbols, digits, and whatever has no digit: "$18.", "-$5", "**18** eggs".
_NUMBER = re.compile(
    r"[^\w.+−-]*(?:([+−-])[^\w.+−-]*)?([0-9]+(?:\.[0-9]+)?|\.[0-9]+)[^0-9]*"
)
_LLM_JEPA = re.compile(r"\n#### (.+)$")


def extract(output: str) -> str:
    """The rest of the line after the last ``####``; empty if there is none."""
    _, marker, answer = output.rpartition("####")
    return answer.partition("\n")[0].strip() if marker else ""


def read_number(answer: str) -> Decimal | None:
    """The one number that an answer states; ``None`` if there is none, or more than one."""
    match = _NUMBER.fullmatch(_THOUSANDS.sub("", answer))
    if match is None:
        return None
    sign, digits = match.groups()
    # copy_negate, because "-" would round to the context's 28 digits.
    return Decimal(digits).copy_negate() if sign in ("-", "−") else Decimal(digits)


def _problem(target: str) -> str | None:
    if extract(target):
        return None
    return (
        "gsm8k is scored by what stands behind '####' in a target, which ends with "
        f"{target[-40:]!r}; take task=exact_match for bare answers"
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
