"""Verdicts on GSM8K, on examples by hand and on all its solutions."""

import json
from decimal import Decimal

import pytest

from erjepa.tasks.gsm8k.scorer import TASK, extract, read_number
from tests.harness.data import REAL_DATA


def verdicts(output, target="2 + 16 = 18\n#### 18"):
    (scored,) = TASK.score([{"target": target, "output": output}])
    assert list(scored) == ["exact_match", "number_match", "llm_jepa"]
    return tuple(scored.values())


def solution(answer):
    return f"Some steps.\n#### {answer}"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (solution("18"), (True, True, True)),
        (solution("19"), (False, False, False)),
        (solution("1"), (False, False, False)),
        (solution("-18"), (False, False, False)),
        (solution("$18"), (False, True, False)),
        (solution("18."), (False, True, False)),
        (solution("18.00"), (False, True, False)),
        (solution("18%"), (False, True, False)),
        (solution("18 dollars"), (False, True, False)),
        (solution("$ 18.00 per day."), (False, True, False)),
        (solution("**18**"), (False, True, False)),
        (solution("18.5"), (False, False, False)),
        (solution("18 or 19"), (False, False, False)),
        (solution("eighteen"), (False, False, False)),
        # What LLM-JEPA's scorer rejects, and what it strips.
        ("#### 18", (True, True, False)),
        ("Steps.#### 18", (True, True, False)),
        ("Steps.\n####18", (True, True, False)),
        (solution("18") + "\nThat is all.", (True, True, False)),
        ("  " + solution("18") + " \n", (True, True, True)),
        # Their <|end|> is cut from the end; the other verdicts see what was generated.
        (solution("18<|end|>"), (False, True, True)),
        (solution("18 <|end|>\n"), (False, True, True)),
        # The last of several answers counts; theirs is the one on the last line.
        (solution("17") + "\nNo:\n#### 18", (True, True, True)),
        (solution("18") + "\nNo:\n#### 17", (False, False, False)),
        ("", (False, False, False)),
        ("18", (False, False, False)),
        ("####", (False, False, False)),
        ("####\n18", (False, False, False)),
    ],
)
def test_verdicts(output, expected):
    assert verdicts(output) == expected


def test_commas_of_the_reference_answer():
    target = solution("1,000")
    assert verdicts(solution("1,000"), target) == (True, True, True)
    assert verdicts(solution("1000"), target) == (False, True, False)
    assert verdicts(solution("1 000"), target) == (False, True, False)
    assert verdicts(solution("1,00"), target) == (False, False, False)


def test_no_answer_on_either_side_is_no_match():
    assert verdicts("Steps.", "Steps.") == (False, False, False)
    assert verdicts("####", "####") == (False, False, False)


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("a\n#### 5 \nb", "5"),
        ("#### 1 #### 2", "2"),
        ("a", ""),
        ("#### ", ""),
    ],
)
def test_extract(output, answer):
    assert extract(output) == answer


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("1,234,567.50", "1234567.5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("−5", "-5"),
        ("–5", "-5"),  # an en dash
        ("1\u00a0000", "1000"),
        ("1\u202f000", "1000"),
        (".5", "0.5"),
        ("0" * 30 + "7" * 40, "7" * 40),
        ("-" + "7" * 40, "-" + "7" * 40),
        ("1,0000", None),
        ("3/4", None),
        ("5 dollars 20", None),
        ("1.2.3", None),
        ("x18", None),
        ("$" * 100_000, None),
    ],
)
def test_read_number(answer, number):
    assert read_number(answer) == (None if number is None else Decimal(number))


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real GSM8K")
def test_the_real_solutions_are_right_and_changed_ones_are_wrong():
    lines = (REAL_DATA / "gsm8k" / "test.jsonl").read_text().splitlines()
    targets = [json.loads(line)["answer"] for line in lines]
    assert len(targets) == 1319
    commas = sum("," in extract(target) for target in targets)
    assert commas == 14
    for change, right in (
        (lambda t: t, (1319, 1319, 1319)),
        (lambda t: f"#### {extract(t)}", (1319, 1319, 0)),
        (lambda t: t.replace(",", ""), (1319 - commas, 1319, 1319 - commas)),
        (lambda t: f"{t} dollars", (0, 1319, 0)),
        (lambda t: f"{t}1", (0, 0, 0)),
        (lambda t: t.partition("####")[0], (0, 0, 0)),
    ):
        scored = TASK.score([{"target": t, "output": change(t)} for t in targets])
        assert tuple(sum(v[n] for v in scored) for n in scored[0]) == right
