"""Decoding of tokenized pairs to texts, and the fingerprint of a tokenizer."""

import hashlib
from array import array
from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any

from torchtune.data import Message
from torchtune.modules.transforms import Transform

from erjepa.datasets.chat_template import ChatTemplate

# Words, numbers, code and scripts, which other vocabularies or merges tokenize differently.
_PROBE = """\
The quick brown fox jumps over the lazy dog; 0123456789, 3.14159 and 1,000,000 of them.
Internationalization, antidisestablishmentarianism, unbelievably, rewriting, tokenizers' choices.
SELECT name, count(*) FROM users WHERE id >= 42 GROUP BY name;\tdef f(x):\n    return x ** 2
(([A-Z]).*)&(dog.*){3,} lines that don't start with a vowel... ¿Cómo? Größe, naïve, Ελλάδα, Привет,
日本語のテキスト, 한국어, العربية, हिन्दी, \U0001f600 and ∑∫√.
"""


class PairTexts:
    """Decoder of tokenized pairs.

    Attributes:
        fingerprint: SHA-256 that is equal for tokenizers that tokenize texts and chats alike.
    """

    def __init__(self, tokenizer: Transform) -> None:
        self._decode = self._decode_whole = tokenizer.decode
        if "skip_special_tokens" in signature(tokenizer.decode).parameters:
            # Some tokenizers also skip content that only looks like a special token.
            self._decode_whole = partial(tokenizer.decode, skip_special_tokens=False)
        self._template = template = ChatTemplate(tokenizer)

        def pair(source: str, target: str) -> tuple[array, ...]:
            return template(
                [
                    Message(role="user", content=source),
                    Message(role="assistant", content=target),
                ]
            )

        first, second = pair("a", "c"), pair("b", "d")
        self._headers = [
            _common(a, b) for a, b in zip(first[3:], second[3:], strict=True)
        ]
        digest = hashlib.sha256()
        for segment in pair(_PROBE, _PROBE[::-1]):
            digest.update(len(segment).to_bytes(8, "little"))
            digest.update(segment.tobytes())
        self.fingerprint = digest.hexdigest()

    def __call__(self, segments: Sequence[Sequence[int]]) -> tuple[str, str]:
        """Decode source and target from the segments of a :class:`~erjepa.datasets.Pair`."""
        source, target = (
            self._decode(list(view[header:])).strip()
            for view, header in zip(segments[3:], self._headers, strict=True)
        )
        return source, target

    def messages(self, segments: Sequence[Sequence[int]]) -> list[dict[str, str]]:
        """Return the chat of a pair: at most one system message, then turns of user and assistant.

        Raises:
            ValueError: if no such chat is tokenized to these segments.
        """
        turns = [*self._turns(segments[0]), segments[2][:-1]]
        starts_with = ["system"] * (len(turns) % 2)
        users = ["user", "assistant"] * (len(turns) // 2)
        roles = [*starts_with, *users]
        headers = self._headers_of(roles)
        contents = [
            self._decode_whole(list(turn[header:]))
            for turn, header in zip(turns, headers, strict=True)
        ]
        chat = list(zip(roles, contents, strict=True))
        messages = [Message(role=role, content=content) for role, content in chat]
        if [*map(list, self._template(messages))] != [*map(list, segments)]:
            raise ValueError(
                "its tokens are not those of a chat of user and assistant, after at most "
                "one system message"
            )
        return [{"role": role, "content": content} for role, content in chat]

    def _headers_of(self, roles: Sequence[Any]) -> list[int]:
        """Count the tokens before the content of each message of a chat; 0 for the last."""
        first, second = (
            self._turns(
                self._template([Message(role=role, content=text) for role in roles])[0]
            )
            for text in ("a", "b")
        )
        return [*(_common(a, b) for a, b in zip(first, second, strict=True)), 0]

    def _turns(self, tokens: Sequence[int]) -> list[Sequence[int]]:
        """Split a chat into messages at its end-of-turn tokens, which are left out."""
        end = self._template.end_of_turn
        ends = [i for i, token in enumerate(tokens) if token == end] + [len(tokens)]
        starts = [0, *(i + 1 for i in ends[:-1])]
        return [tokens[a:b] for a, b in zip(starts, ends, strict=True)]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(i for i in range(len(a)) if a[i] != b[i])
