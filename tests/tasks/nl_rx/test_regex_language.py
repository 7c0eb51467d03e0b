"""Equality of regex languages, tested in three ways that use no derivatives.

membership:  L(R & w) = L(w)  <=>  w in L(R), so equality decides membership. The results are
             compared with ``re`` where it can parse the regex, and with ``describes`` below, which
             tries every substring of the line and also knows & and ~.
rewriting:   a regex equals its rewriting by laws that hold in every language.
by hand:     tables of equal and unequal pairs.
"""

import itertools
import math
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erjepa.tasks.nl_rx import regex_language
from erjepa.tasks.nl_rx import regex_nodes as nodes
from erjepa.tasks.nl_rx.regex_language import languages_equal
from erjepa.tasks.nl_rx.regex_syntax import RegexSyntaxError, parse

LINES = ["".join(w) for n in range(4) for w in itertools.product("aB-", repeat=n)]


def equal(a: str, b: str) -> bool | None:
    return languages_equal(a, b, max_states=5000, seconds=20)


def has(regex: str, line: str) -> bool | None:
    return equal(f"({regex})&({line})", line or "()")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("(dog.*)&(.*[0-9])", "(.*[0-9])&(dog.*)"),
        ("(dog)|(ring)", "ring|dog"),
        (".*dog.*", ".*.*dog.*.*.*"),
        ("~(~(~(dog)))", "~(dog)"),
        ("~((a)|(b))", "~(a)&~(b)"),
        ("~(dog)*", "(~(dog))*"),
        ("([a-z]){2,}", "[a-z][a-z]+"),
        ("(dog){2,4}", "dogdog(dog)?(dog)?"),
        ("(dog)+", "dog(dog)*"),
        ("[AEIOUaeiou]", "a|e|i|o|u|A|E|I|O|U"),
        ("[A-Za-z]", "[a-z]|[A-Z]"),
        ("([A-Z])&([a-z])", "(dog)&(ring)"),
        (r"[^0-9]", r"\D"),
        (r".&~([0-9])", r"[^\d]"),
        (r'"a.*"', r"a\.\*"),
        ("a|b&c", "a|(b&c)"),
        ("a&bc|d", "(a&(bc))|d"),
        ("(a?){7}", "a{0,7}"),
        ("((.*)([A-Za-z]))&(.*)", ".*[a-zA-Z]"),
        ("a{0}", "()"),
        ("(a&b)*", "()"),
        (r"\bdog\b", "dog"),
        (r"a\bb", "a&b"),
        (r".*\bdog\b.*", r"(.*[^\w])?dog([^\w].*)?"),
        (r"\ba&a\b", "a"),
        (r"(\b|a){3}", "a{1,3}"),
        (r"(\b|[a-]){3}&a-", "a-"),
        ("dog|.*dog|ring.*dog|.*g", ".*g"),
        (r"\b.*&-.*", "-.*&a.*"),
        (r"~(\b).*", ".*"),
        (r"\b\b.*", r"\b.*"),
    ],
)
def test_equal(a, b):
    assert equal(a, b) is True
    assert equal(b, a) is True


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (".*[0-9].*", ".*[A-Z].*"),
        ("([a-z]){3,}", "([a-z]){2,}"),
        ("(dog){2,4}", "(dog){2,5}"),
        ("(dog)+", "(dog)*"),
        ("a?", "a"),
        ("~(dog)", "dog"),
        ("~(dog)*", "~((dog)*)"),
        ("~(.*dog.*)", "~(dog)"),
        ("(a&b)|c", "a&(b|c)"),
        (".*dog", "dog.*"),
        ("dog", "DOG"),
        ("[a-z]", "[a-y]"),
        ("[^a]", "[^b]"),
        ("[a-f]", "[a-ce-f]"),
        (".*dog|.*", ".*dog"),
        (".*(.*dog|og)", ".*dog"),
        (".", ".*"),
        ("a.c", r"a\.c"),
        ("()", "a&b"),
        (r".*\bdog\b.*", ".*dog.*"),
        (r"\b.*", ".*"),
        (r"(\ba)&a", r"(\bb)&b"),
        (r"-\ba", r"-\b-"),
        (r"\bdog", "bdog"),
    ],
)
def test_unequal(a, b):
    assert equal(a, b) is False
    assert equal(b, a) is False


@pytest.mark.parametrize(
    "text",
    ["", "(", ")", "(a", "a)", "((a)", "[a", "[]", "a]", "[z-a]", r"[a-\d]", r"[\b]"]
    + [
        "*",
        "(*a)",
        "a|",
        "|a",
        "a||b",
        "a&",
        "&a",
        "(|)",
        "~",
        "a~",
        "~*",
        "~|a",
        "a~*b",
    ]
    + ["a{", "a{}", "a{,2}", "a{3,2}", "a{2", "a}", "{2}", "a{x}", 'a"b', "a\\", r"\q"]
    + ["a\nb", "(" * 5000],
)
def test_what_is_no_regex(text):
    with pytest.raises(RegexSyntaxError):
        equal(text, "a")
    with pytest.raises(RegexSyntaxError):
        equal("a", text)


def grown(operators):
    """Regexes as texts: leaves, and what ``operators`` make of smaller ones."""
    leaves = st.sampled_from(["a", "B", "-", ".", "[a-c]", "[^a]", r"\b", "()"])
    return st.recursive(
        leaves, lambda inner: st.one_of(*operators(inner)), max_leaves=6
    )


def plain(inner):
    suffixes = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{1,2}"])
    return [
        st.builds("({})|({})".format, inner, inner),
        st.builds("({})({})".format, inner, inner),
        st.builds("({}){}".format, inner, suffixes),
    ]


def with_both(inner):
    return [
        *plain(inner),
        st.builds("({})&({})".format, inner, inner),
        st.builds("~({})".format, inner),
    ]


def describes(node, line: str) -> bool:
    """By the definition: stretches of the line, joined in every way."""
    everything = {(i, j) for j in range(len(line) + 1) for i in range(j + 1)}

    def join(a, b):
        return {(i, k) for i, j in a for j2, k in b if j == j2}

    def stretches(node):
        match node:
            case nodes.Letters():
                return {(i, i + 1) for i, c in enumerate(line) if ord(c) in node}
            case nodes.Boundary():
                words = [False, *(c in "aB" for c in line), False]
                return {(i, i) for i, j in everything if words[i] != words[i + 1]}
            case nodes.Sequence(parts):
                total = {(i, i) for i, _ in everything}
                for part in parts:
                    total = join(total, stretches(part))
                return total
            case nodes.Union(options):
                return set().union(*map(stretches, options))
            case nodes.Intersection(options):
                return everything.intersection(*map(stretches, options))
            case nodes.Complement(inner):
                return everything - stretches(inner)
            case nodes.Repeat(inner, least, most):
                once = stretches(inner)
                total, rounds = set(), {(i, i) for i, _ in everything}
                for n in range(least + len(line) + 1 if most is None else most + 1):
                    total |= rounds if n >= least else set()
                    rounds = join(rounds, once)
                return total

    return (0, len(line)) in stretches(node)


@settings(max_examples=37, deadline=None, derandomize=True)
@given(grown(plain))
def test_membership_as_re_has_it(regex):
    for line in LINES:
        assert has(regex, line) == bool(re.fullmatch(regex, line, re.ASCII)), line


@settings(max_examples=50, deadline=None, derandomize=True)
@given(grown(with_both))
def test_membership_as_stretches_have_it(regex):
    for line in LINES:
        assert has(regex, line) == describes(parse(regex), line), line


@settings(max_examples=100, deadline=None, derandomize=True)
@given(grown(with_both), grown(with_both))
def test_equal_languages_have_equal_lines(a, b):
    same = [describes(parse(a), x) == describes(parse(b), x) for x in LINES]
    assert all(same) or equal(a, b) is False
    assert equal(a, f"~({a})") is False


BLOWN_UP = "((a|b)*a(a|b){25})"  # 2**26 states


def test_the_bound_on_states_holds():
    start = time.monotonic()
    assert languages_equal(BLOWN_UP, BLOWN_UP, max_states=500, seconds=60) is None
    assert time.monotonic() - start < 5
    # a{9} has eleven states: none to nine letters read, and more.
    assert languages_equal("a{9}", "a{9}", max_states=11, seconds=60) is True
    assert languages_equal("a{9}", "a{9}", max_states=10, seconds=60) is None


@pytest.mark.parametrize("regex", [BLOWN_UP, "a?" * 1000])
def test_the_bound_on_time_holds(regex):
    start = time.monotonic()
    assert languages_equal(regex, regex, max_states=10**9, seconds=0.2) is None
    assert time.monotonic() - start < 5


def test_a_regex_deeper_than_the_stack_is_undecided():
    deep = "a(~(" * 2000 + "a" + "))" * 2000
    assert equal(deep, "a") is None


def test_the_time_holds_for_reading_and_for_the_alphabet_too():
    assert languages_equal("a|b", "b|a", max_states=9, seconds=-1) is None
    with pytest.raises(TimeoutError):
        parse("ab", time.monotonic() - 1)
    trees = parse("a|b"), parse("b|a")
    assert regex_language._alphabet(trees, math.inf)
    with pytest.raises(TimeoutError):
        regex_language._alphabet(trees, time.monotonic() - 1)
