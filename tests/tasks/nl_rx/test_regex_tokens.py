"""Tokens, structures and lengths, on labels made by hand and on the paper's figures."""

import pytest

from erjepa.tasks.nl_rx.regex_kinds import length_group, regex_tokens, structures
from erjepa.tasks.nl_rx.regex_syntax import parse
from tests.harness.data import real_texts

C, AND, A, Q, B, K = (
    "complement",
    "intersection",
    "alternation",
    "quantifier",
    "boundary / anchor",
    "character class",
)

# Regex, its number of tokens, its structures.
BY_HAND = [
    ("dog", 1, {}),
    (".*dog.*", 5, {Q}),
    ("[a-z]", 1, {K}),
    ("[^a-z]+", 2, {K, Q}),
    ("(dog){2,}", 4, {Q}),
    ("a{3}b{2,5}", 4, {Q}),
    ("~(dog)", 4, {C}),
    ("(dog)&(truck)", 7, {AND}),
    ("(dog)|(truck)", 7, {A}),
    (r"\bdog\b", 3, {B}),
    (r"\Bdog", 2, {B}),
    ("^dog$", 3, {B}),
    (r"\^dog\$", 3, {}),
    (r"\*\+\?\|\&\~", 6, {}),
    ("[*+?|&~^$]", 1, {K}),
    (r"[\]*]", 1, {K}),
    (r"[^\]]*", 2, {K, Q}),
    (r"\[a-z\]", 5, {}),
    (r"\{2,\}", 4, {}),
    (r"\\*", 2, {Q}),
    (r"\\b", 2, {}),
    ('"*|~"', 1, {}),
    ("()", 2, {}),
    ("a?", 2, {Q}),
    ("dog cat", 3, {}),
    # Texts that are no regex still have tokens, and the operators that stand free in them.
    ("[a-z", 4, {}),
    ("{2", 2, {}),
    ("dog{x}", 4, {}),
    ('"dog', 2, {}),
    ("[^]", 3, {B}),
    ("dog\\", 2, {}),
    ("(((", 3, {}),
    ("dog\ndog", 3, {}),
    # Of the dataset.
    ("~((dog.*[0-9].*){3,})", 12, {C, Q, K}),
    (".*(.*)(([AEIOUaeiou])*).*", 14, {Q, K}),
    ("(([0-9])|(.)).*([AEIOUaeiou]).*", 16, {A, Q, K}),
    ("((.*)(.*dog.*)){7,}", 14, {Q}),
    (r"(.*\b[A-Z]\b.*)&(~(lake))", 16, {B, K, Q, AND, C}),
]


@pytest.mark.parametrize(("regex", "length", "found"), BY_HAND)
def test_labels_made_by_hand(regex, length, found):
    assert len(regex_tokens(regex)) == length
    assert structures(regex) == set(found)
    assert "".join(regex_tokens(regex)) == regex


def test_tokens_in_order():
    assert regex_tokens(r"~(dog[\]-]\b{2,})") == [
        *("~", "(", "dog", r"[\]-]", r"\b", "{2,}", ")")
    ]


def test_groups_of_length_meet_at_their_limits():
    groups = {n: length_group("." * n) for n in (0, 10, 11, 15, 16, 20, 21, 99)}
    assert list(groups.values()) == [
        *("≤10", "≤10", "11–15", "11–15", "16–20", "16–20", ">20", ">20")
    ]


def real_targets(split):
    return [target for _, target in real_texts(f"nl_rx/synth_{split}.jsonl")]


def test_all_targets_of_synth():
    targets = real_targets("train") + real_targets("test")
    assert len(targets) == 10_000
    words = ("dog", "truck", "ring", "lake")
    lone = {*".*+?()|&~", r"\b", *words}
    sets = {"[0-9]", "[AEIOUaeiou]", "[a-z]", "[A-Z]", "[A-Za-z]"}
    counts = {f"{{{n},}}" for n in range(2, 8)}
    for target in targets:
        parse(target)
        tokens = regex_tokens(target)
        assert "".join(tokens) == target
        assert set(tokens) <= lone | sets | counts
        # The same operators, found in the text once sets and word boundaries are cut out.
        bare = target.replace(r"\b", "")
        for one in sets:
            bare = bare.replace(one, "")
        assert structures(target) == {
            name
            for name, there in (
                (C, "~" in bare),
                (AND, "&" in bare),
                (A, "|" in bare),
                (Q, any(sign in bare for sign in "*+?{")),
                (B, r"\b" in target),
                (K, "[" in target),
            )
            if there
        }


def is_share(percent, examples):
    """Whether some count of right ones among ``examples`` is printed as ``percent``."""
    near = round(percent / 100 * examples)
    return any(
        f"{100 * right / examples:.2f}" == f"{percent:.2f}"
        for right in (near - 1, near, near + 1)
    )


def test_lengths_agree_with_the_accuracies_that_the_paper_prints():
    """Section 3.4 prints mean accuracies of the shortest and the longest group.

    They are shares of five times as many examples as the group has, so they tell the
    groups' sizes up to a multiple: the group of 68 is the only one below 136 that fits.
    """
    groups = [length_group(target) for target in real_targets("test")]
    sizes = {name: groups.count(name) for name in set(groups)}
    assert sizes == {"≤10": 357, "11–15": 854, "16–20": 721, ">20": 68}
    shortest, longest = (83.64, 85.15, 89.80), (33.53, 56.76, 78.53)
    assert all(is_share(percent, 5 * sizes["≤10"]) for percent in shortest)
    fits = [
        size
        for size in range(1, 136)
        if all(is_share(percent, 5 * size) for percent in longest)
    ]
    assert fits == [sizes[">20"]]


def test_structures_agree_with_the_gains_that_the_paper_prints():
    """Gains in percentage points are differences of such shares (Section 3.4)."""
    found = [structures(target) for target in real_targets("test")]
    gains = {Q: 16.90, AND: 16.07, K: 15.42}
    sizes = {name: sum(name in one for one in found) for name in gains}
    assert sizes == {Q: 1765, AND: 555, K: 1747}
    assert all(is_share(gain, 5 * sizes[name]) for name, gain in gains.items())
