"""The embedded grammar: reproducible, without duplicates, and split by regex."""

import re

import pytest

from erjepa.tasks.nl_rx.grammar import (
    SYSTEM_PROMPT,
    generate_pairs,
    generate_records,
    split_of,
)

# What each split holds; the error names it.
LARGEST = {"train": 34797, "test": 4983}


@pytest.fixture(scope="module")
def whole_grammar() -> list[tuple[str, str]]:
    """Every regex of the grammar with one of its descriptions."""
    return [pair for s, n in LARGEST.items() for pair in generate_pairs(n, split=s)]


@pytest.mark.parametrize("split", LARGEST)
def test_same_seed_same_pairs(split):
    first = generate_pairs(300, split=split, seed=3)
    assert generate_pairs(300, split=split, seed=3) == first
    other = generate_pairs(300, split=split, seed=4)
    assert sorted(other) != sorted(first)


def test_pairs_stay_what_they_are():
    # A change here changes the demo's data and voids the numbers reported on it.
    assert generate_pairs(2, split="train", seed=0) == [
        (
            "lines containing either 'dog' or 'moon' followed by a character",
            ".*((dog|moon).*.).*",
        ),
        (
            "lines ending with 'ring' before 'moon' and the word 'dog'",
            ".*(ring.*(moon&dog))",
        ),
    ]


@pytest.mark.parametrize("split", LARGEST)
@pytest.mark.parametrize("size", [0, 1, 500])
def test_size(split, size):
    assert len(generate_pairs(size, split=split, seed=1)) == size


@pytest.mark.parametrize("split", LARGEST)
def test_largest_size_and_one_more(split):
    largest = LARGEST[split]
    assert len(generate_pairs(largest, split=split)) == largest
    with pytest.raises(ValueError, match=f"holds at most {largest}"):
        generate_pairs(largest + 1, split=split)
    with pytest.raises(ValueError, match="Cannot draw -1 pairs"):
        generate_pairs(-1, split=split)


@pytest.mark.parametrize(
    ("sizes", "seeds"), [((5000, 500), (1, 2)), ((34797, 4983), (7, 0))]
)
def test_no_test_regex_or_description_occurs_in_train(sizes, seeds):
    train = generate_pairs(sizes[0], split="train", seed=seeds[0])
    test = generate_pairs(sizes[1], split="test", seed=seeds[1])
    for side in (0, 1):
        assert not {pair[side] for pair in train} & {pair[side] for pair in test}


def test_split_is_a_function_of_the_regex_alone():
    for split in LARGEST:
        pairs = generate_pairs(1000, split=split, seed=5)
        assert {split_of(regex) for _, regex in pairs} == {split}


def test_no_duplicates(whole_grammar):
    descriptions, regexes = zip(*whole_grammar, strict=True)
    assert len(set(descriptions)) == len(descriptions)
    assert len(set(regexes)) == len(regexes)


def test_a_description_has_one_regex():
    # Other seeds word the same regexes otherwise; a wording must not be shared.
    meaning = {}
    for seed in range(3):
        for description, regex in generate_pairs(
            LARGEST["train"], split="train", seed=seed
        ):
            assert meaning.setdefault(description, regex) == regex


def test_regexes_without_nl_rx_operators_compile(whole_grammar):
    plain = [regex for _, regex in whole_grammar if not set("&~") & set(regex)]
    assert len(plain) > len(whole_grammar) // 3
    for regex in plain:
        re.compile(regex)


def test_compositions_are_bracketed(whole_grammar):
    for _, regex in whole_grammar:
        # Without its innermost groups and classes, what joins operands is gone too.
        body = re.sub(r"\[[^]]*\]", "x", regex)
        while (shorter := re.sub(r"~?\([^()]*\)", "x", body)) != body:
            body = shorter
        assert not set("|&~()") & set(body), regex


@pytest.mark.parametrize(
    ("regex", "wording"),
    [
        (".*dog.*", "lines (with|containing) (the word )?'dog'"),
        (".*([0-9]|dog)", "lines ending with (either )?a (number|digit) or .*'dog'"),
        (
            "([AEIOUaeiou].*[A-Z]).*",
            "lines starting with a vowel (before|followed by) .* letter",
        ),
        (
            "~(.*((tree){2,}.*[a-z]).*)",
            "lines (without|not containing) .*'tree' (2 or more|at least 2) times "
            "(before|followed by) a lower-case letter",
        ),
        (
            r"\b(.&[A-Za-z])\b",
            "words with (both )?a character and a letter",
        ),
    ],
)
def test_description_says_what_the_regex_does(whole_grammar, regex, wording):
    (description,) = [d for d, r in whole_grammar if r == regex]
    assert re.fullmatch(wording, description)


def test_records_are_chats_of_the_pairs():
    pairs = generate_pairs(20, split="test", seed=2)
    records = generate_records(20, split="test", seed=2)
    assert records[0]["messages"][0] == {"role": "system", "content": SYSTEM_PROMPT}
    for (description, regex), record in zip(pairs, records, strict=True):
        assert record["messages"][1:] == [
            {"role": "user", "content": description},
            {"role": "assistant", "content": regex},
        ]


def test_parts_by_constructs():
    """Of all regexes those that show a construct, and those that do not, are the whole."""
    for split, largest in LARGEST.items():
        everything = {regex for _, regex in generate_pairs(largest, split=split)}
        shown = {regex for regex in everything if "&" in regex or "~" in regex}
        asked = {
            "constructs": (shown, {"constructs": ["and", "not"]}),
            "without": (everything - shown, {"without": ["and", "not"]}),
        }
        for expected, keys in asked.values():
            drawn = generate_pairs(len(expected), split=split, **keys)
            assert {regex for _, regex in drawn} == expected
            with pytest.raises(ValueError, match=f"at most {len(expected)} of this"):
                generate_pairs(len(expected) + 1, split=split, **keys)


@pytest.mark.parametrize(
    ("construct", "wordings"),
    [
        ("and", r"\band\b"),
        ("or", r"\b(?!or more)or\b"),
        ("not", "lines (without|not containing)"),
        ("count", r"\d or more times|at least \d times"),
        ("word", "^words with"),
    ],
)
def test_a_construct_is_in_the_description_too(construct, wordings):
    shown = generate_pairs(400, split="test", constructs=[construct])
    assert all(re.search(wordings, text) for text, _ in shown)
    others = generate_pairs(400, split="test", without=[construct])
    assert not any(re.search(wordings, text) for text, _ in others)


def test_unknown_construct():
    with pytest.raises(ValueError, match="Unknown construct xor; the grammar has and,"):
        generate_pairs(1, split="train", without=["xor"])
