"""Verdicts on NL-RX, and the equality of languages on the regexes of the dataset."""

import random
import re
import time
from collections import Counter

import pytest

from erjepa.tasks.nl_rx.regex_language import languages_equal
from erjepa.tasks.nl_rx.regex_syntax import parse
from erjepa.tasks.nl_rx.scorer import TASK
from tests.harness.data import real_texts

ALL_RIGHT = {"exact_match": True, "dfa_equal": True, "llm_jepa": True}
ALL_WRONG = {"exact_match": False, "dfa_equal": False, "llm_jepa": False}


def verdicts(target: str, output: str) -> dict[str, bool | None]:
    return TASK.score([{"target": target, "output": output}])[0]


def targets(split: str) -> list[str]:
    return [target for _, target in real_texts(f"nl_rx/{split}.jsonl")]


def test_the_task():
    assert (TASK.name, TASK.primary) == ("nl_rx", "exact_match")
    assert list(verdicts("a", "a")) == ["exact_match", "dfa_equal", "llm_jepa"]
    assert TASK.extract("\n dog.* \n") == "dog.*"
    assert TASK.score([]) == []


@pytest.mark.parametrize("split", ["synth_test", "turk_test"])
def test_gold_against_gold(split):
    gold = targets(split)
    assert len(gold) == 2000
    scored = TASK.score([{"target": g, "output": g} for g in gold])
    assert scored == [ALL_RIGHT] * 2000


@pytest.mark.parametrize("split", ["synth_test", "turk_test"])
def test_corrupted_gold(split):
    gold = targets(split)
    corrupted = [
        {"target": g, "output": output}
        for g in gold[:300]
        for output in ("", f"({g}", f"{g})", f"~({g})", f"{g} is the regex (see above")
    ]
    assert TASK.score(corrupted) == [ALL_WRONG] * len(corrupted)


@pytest.mark.parametrize(
    ("target", "output", "exact", "dfa", "llm_jepa"),
    [
        ("(a)&(.)", "(.)&(a)", False, True, False),
        (".*dog.*", " .*dog.*\n", True, True, True),
        (".*dog.*", ".*dog.*<|end|>", False, False, True),
        (".*dog.*", ".*dog.* <|end|> ", False, False, True),
        (".*dog.*", ".*dog.*<|end|><|end|>", False, False, False),
        (".*dog.*", "<|end|>", False, False, False),
        (" dog", "dog", True, True, False),
        ("dog", "dog.*\ndog", False, False, False),
        ("([a-z]){2,}", "([a-z]){3,}", False, False, False),
        ("([a-z]){2,}", "[a-z][a-z]+", False, True, False),
        ("(dog", "(dog", True, True, True),
        ("(dog", "dog", False, None, False),
        ("(dog", "(ring", False, None, False),
    ],
)
def test_verdicts(target, output, exact, dfa, llm_jepa):
    assert verdicts(target, output) == {
        "exact_match": exact,
        "dfa_equal": dfa,
        "llm_jepa": llm_jepa,
    }


def test_beyond_the_bounds_is_undecided_and_the_rest_is_scored():
    blown_up = "(a|b)*a(a|b){25}"
    deep = "a(~(" * 2000 + "a" + "))" * 2000
    scored = TASK.score(
        [
            {"target": "(a|b)*a(a|b){24}(a|b)", "output": blown_up},
            {"target": "a", "output": blown_up},
            {"target": blown_up, "output": blown_up},
            {"target": "a", "output": deep},
            {"target": deep, "output": "a"},
            {"target": "a", "output": "a"},
        ]
    )
    verdicts = [None, False, True, None, None, True]
    assert [one["dfa_equal"] for one in scored] == verdicts
    assert [one["exact_match"] for one in scored] == [v is True for v in verdicts]


class Rewriter:
    """A regex in other words: the laws of ``write``, applied at random.

    It reads the regexes of the dataset alone, and on its own account: an error of the
    parser under test must not pass into both sides.
    """

    def __init__(self, text: str, rng: random.Random):
        self.tokens = re.findall(r"\\b|\[[^]]+\]|\{\d+,\}|.", text)
        self.rng = rng

    def rewritten(self) -> str:
        text = self.write(self.read("|&"))
        assert not self.tokens
        return text

    def read(self, operators: str):
        if not operators:
            return "", self.sequence()
        options = [self.read(operators[1:])]
        while self.tokens[:1] == [operators[0]]:
            self.tokens.pop(0)
            options.append(self.read(operators[1:]))
        return (operators[0], options) if len(options) > 1 else options[0]

    def sequence(self):
        parts = []
        while self.tokens and self.tokens[0] not in "|&)":
            atom = self.atom()
            while self.tokens and self.tokens[0][0] in "*+{":
                atom = self.tokens.pop(0), [atom]
            parts.append(atom)
        return parts

    def atom(self):
        token = self.tokens.pop(0)
        if token == "~":
            return "~", [self.atom()]
        if token != "(":
            return token
        group = self.read("|&")
        assert self.tokens.pop(0) == ")"
        return group

    def write(self, tree) -> str:
        if isinstance(tree, str):
            text = tree
        else:
            kind, parts = tree
            parts = [self.write(part) for part in parts]
            if kind in ("|", "&"):
                self.rng.shuffle(parts)
                text = kind.join(parts)
            elif kind == "":
                text = "".join(parts)
            elif kind == "~":
                text = f"~{parts[0]}"
            else:
                text = self.repeat(parts[0], kind)
            text = f"({text})"
        return f"~(~({text}))" if self.rng.random() < 0.1 else text

    def repeat(self, text: str, suffix: str) -> str:
        if self.rng.random() < 0.3:
            return text + suffix
        if suffix == "*":
            return ".*.*" if text == "." else f"({text}*)*"
        least = 1 if suffix == "+" else int(suffix[1:-2])
        return f"{text * least}{text}*"


def decisions(regexes: list[str], seed: int) -> Counter:
    """Verdicts on each regex and itself, and on each regex and a rewriting of it."""
    rng = random.Random(seed)
    return Counter(
        languages_equal(regex, other, max_states=5000, seconds=1.0)
        for regex in regexes
        for other in (regex, Rewriter(regex, rng).rewritten())
    )


def test_test_regexes_are_equal_to_their_rewritings():
    regexes = random.Random(0).sample(targets("synth_test"), 150)
    regexes += random.Random(1).sample(targets("turk_test"), 150)
    assert decisions(regexes, seed=2) == {True: 600}


@pytest.mark.slow
def test_every_test_regex_is_equal_to_its_rewriting():
    regexes = targets("synth_test") + targets("turk_test")
    verdicts = decisions(regexes, seed=3)
    assert set(verdicts) <= {True, None}
    assert verdicts[True] >= 0.995 * 8000


def test_no_test_regex_is_equal_to_its_complement():
    for regex in random.Random(4).sample(targets("turk_test"), 300):
        verdict = languages_equal(regex, f"~({regex})", max_states=5000, seconds=20)
        assert verdict is False, regex


@pytest.mark.parametrize("split", ["turk_test", "turk_train"])
def test_every_target_of_turk_parses(split):
    regexes = targets(split)
    assert len(regexes) in (2000, 8000)
    for regex in set(regexes):
        parse(regex)


@pytest.mark.slow
def test_regexes_that_describe_no_line_or_every_line():
    gold = targets("synth_test")
    nothing = TASK.score([{"target": g, "output": "(a)&(b)"} for g in gold])
    anything = TASK.score([{"target": g, "output": ".*.*"} for g in gold])
    assert sum(one["dfa_equal"] for one in nothing) == 312
    assert sum(one["dfa_equal"] for one in anything) == 86


@pytest.mark.parametrize(
    "output", ["|".join("abc" for _ in range(20_000)), "(" * 5000, "a" * 10**8]
)
def test_answers_longer_than_any_regex_are_undecided_at_once(output):
    start = time.monotonic()
    assert verdicts("dog", output)["dfa_equal"] is None
    assert verdicts(output, "dog")["dfa_equal"] is None
    assert verdicts(output, output)["dfa_equal"] is True
    assert time.monotonic() - start < 5
