"""Verdicts on NQ-Open, on examples by hand and on all its answers."""

import pytest

from erjepa.tasks.nq_open.scorer import TASK
from tests.harness.data import real_texts


def verdicts(output, target="The Beatles; 9; St. Paul's"):
    (scored,) = TASK.score([{"target": target, "output": output}])
    assert list(scored) == ["exact_match", "squad_match", "llm_jepa"]
    return tuple(scored.values())


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("The Beatles; 9; St. Paul's", (True, True, True)),
        ("The Beatles", (True, True, True)),
        (" 9\n", (True, True, True)),
        ("beatles", (False, True, False)),
        ("the  BEATLES!", (False, True, False)),
        ("st pauls", (False, True, False)),
        ("an 9", (False, True, False)),
        # Articles are whole words, aliases whole answers.
        ("Thebeatles", (False, False, False)),
        ("9; St. Paul's", (False, False, True)),
        ("The Rolling Stones", (False, False, False)),
        # LLM-JEPA's scorer takes any substring of the target.
        ("", (False, False, True)),
        (" \n", (False, False, True)),
        ("B", (False, False, True)),
        ("no idea; e", (False, False, True)),
        ("The Beatles<|end|>", (False, False, True)),
    ],
)
def test_verdicts(output, expected):
    assert verdicts(output) == expected


def test_an_answer_of_nothing_but_punctuation_or_articles():
    assert verdicts("/", "/") == (True, True, True)
    assert verdicts(".", "/") == (False, False, False)
    assert verdicts("the the", "The The") == (False, True, False)
    assert verdicts("a", "The The") == (False, False, False)
    assert verdicts("", "; Paul") == (False, False, True)


def test_the_real_answers_are_right_and_changed_ones_are_wrong():
    targets = [target for _, target in real_texts("nq_open/test.jsonl")]
    assert len(targets) == 1769
    for change, right in (
        (lambda t: t, (1769, 1769, 1769)),
        (lambda t: t.split("; ")[-1], (1769, 1769, 1769)),
        (lambda t: f"the {t.split('; ')[0].upper()}!", (0, 1768, None)),
        (lambda t: f"{t} zq", (0, 0, None)),
        (lambda t: "", (0, 0, 1769)),
    ):
        scored = TASK.score([{"target": t, "output": change(t)} for t in targets])
        for name, count in zip(scored[0], right, strict=True):
            assert count in (None, sum(v[name] for v in scored)), name
