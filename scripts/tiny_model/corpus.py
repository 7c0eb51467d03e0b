"""Unpaired text for pretraining the embedded model.

No chat shows a description together with its regex:

    system                       user                    assistant
    Describe.                    a description
    Write a regular expression.                          a regex
    Repeat.                      a b c                   a b c
    Reverse.                     a b c                   c b a
    Quoted words.                text with 'a' and 'b'   a b
    Look up.                     a = x; b = y: b a       y x
    Encode.                      keep a then b           {1;2}<

The string tasks teach what a language model can do before fine-tuning: copy, map a
sequence item by item, and translate from one language to another. They use words,
descriptions and regexes, but look-up tables map wordings to random words or random words
to regexes, never wordings to regexes; and Encode translates into a made-up language.
All regexes come from the grammar's train split, so the test split stays unseen.
"""

import random
from collections.abc import Callable, Iterator

from erjepa.tasks.nl_rx.grammar import CLASSES, WORDS, generate_pairs

Chat = list[dict[str, str]]

RANDOM_WORDS = (
    "apple bird blue boat book box cup door east egg fire fish game girl good green "
    "hand home hour ice key king land map milk name oil paper rain red road room sea "
    "snow song sun table town wall wind"
).split()
WORDINGS = [wording for group in CLASSES.values() for wording in group]
WORDINGS += [f"'{word}'" for word in WORDS]
REGEXES = [*CLASSES, *WORDS]
LOOK_UPS = [
    (RANDOM_WORDS, RANDOM_WORDS),
    (WORDINGS, RANDOM_WORDS),
    (RANDOM_WORDS, REGEXES),
]
PAIR_POOL = 16_000

# The made-up language: numbers for words, symbols for what joins them.
CODES = {word: str(10 + i) for i, word in enumerate(RANDOM_WORDS)}
JOINS = {"with": "+", "over": "/", "then": ";"}
FRAMES = {"send": "<{}<", "keep": "{}<", "drop": "<{}", "never": "!{{<{}<}}"}


def _chat(system: str, user: str | None, assistant: str | None) -> Chat:
    contents = {"system": system, "user": user, "assistant": assistant}
    return [
        {"role": role, "content": content}
        for role, content in contents.items()
        if content is not None
    ]


class Corpus:
    """An endless, seeded stream of chats."""

    def __init__(self, seed: int) -> None:
        pairs = generate_pairs(PAIR_POOL, split="train", seed=seed)
        self._rng = random.Random(seed)
        self._descriptions = [description for description, _ in pairs]
        self._regexes = [regex for _, regex in pairs]
        self._kinds: list[Callable[[], Chat]] = [
            self._description,
            self._regex,
            self._repeat,
            self._repeat,
            self._reverse,
            self._quoted,
            self._look_up,
            self._look_up,
            self._encode,
            self._encode,
            self._encode,
        ]

    def __iter__(self) -> Iterator[Chat]:
        while True:
            yield self._rng.choice(self._kinds)()

    def _words(self, most: int) -> list[str]:
        vocabulary = self._rng.choice([RANDOM_WORDS, RANDOM_WORDS, [*WORDS]])
        return self._rng.choices(vocabulary, k=self._rng.randint(2, most))

    def _text(self) -> str:
        texts = [self._descriptions, self._regexes, [" ".join(self._words(8))]]
        return self._rng.choice(self._rng.choice(texts))

    def _description(self) -> Chat:
        return _chat("Describe.", self._rng.choice(self._descriptions), None)

    def _regex(self) -> Chat:
        regex = self._rng.choice(self._regexes)
        return _chat("Write a regular expression.", None, regex)

    def _repeat(self) -> Chat:
        text = self._text()
        return _chat("Repeat.", text, text)

    def _reverse(self) -> Chat:
        words = self._words(8)
        return _chat("Reverse.", " ".join(words), " ".join(reversed(words)))

    def _quoted(self) -> Chat:
        words = self._words(6)
        quoted = [self._rng.random() < 0.5 for _ in words[1:]] + [True]
        text = " ".join(
            f"'{w}'" if q else w for w, q in zip(words, quoted, strict=True)
        )
        answer = " ".join(w for w, q in zip(words, quoted, strict=True) if q)
        return _chat("Quoted words.", text, answer)

    def _look_up(self) -> Chat:
        keys, values = self._rng.choice(LOOK_UPS)
        size = self._rng.randint(2, 4)
        chosen = self._rng.sample(keys, size), self._rng.sample(values, size)
        table = dict(zip(*chosen, strict=True))
        asked = self._rng.choices(list(table), k=self._rng.randint(1, 3))
        rows = "; ".join(f"{key} = {value}" for key, value in table.items())
        answer = " ".join(table[key] for key in asked)
        return _chat("Look up.", f"{rows}: {' , '.join(asked)}", answer)

    def _encode(self) -> Chat:
        frame, code_frame = self._rng.choice(list(FRAMES.items()))
        plain, code = self._phrase(depth=2)
        return _chat("Encode.", f"{frame} {plain}", code_frame.format(code))

    def _phrase(self, depth: int) -> tuple[str, str]:
        word = self._rng.choice(RANDOM_WORDS)
        shape = self._rng.choice(["word", "again", "join", "join"]) if depth else "word"
        if shape == "word":
            return word, CODES[word]
        if shape == "again":
            count = self._rng.randint(2, 5)
            return f"{word} again {count}", f"{{{CODES[word]}}}*{count}"
        join, symbol = self._rng.choice(list(JOINS.items()))
        plain, code = self._phrase(depth - 1)
        return f"{word} {join} {plain}", f"{{{CODES[word]}{symbol}{code}}}"
