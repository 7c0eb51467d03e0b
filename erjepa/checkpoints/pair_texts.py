"""Decoding of tokenized pairs to texts, and the fingerprint of a tokenizer."""

import contextlib
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
_NO_CHAT = "its tokens are not those of a chat of user and assistant, after at most one system message"


class PairTexts:
    """Decoder of tokenized pairs.

    Attributes:
        fingerprint: SHA-256 that is equal for tokenizers that tokenize texts and chats alike.
    """

    def __init__(self, tokenizer: Transform) -> None:
        self._decode = tokenizer.decode
        if "skip_special_tokens" in signature(tokenizer.decode).parameters:
            # Some tokenizers also skip content that only looks like a special token.
            self._decode = partial(tokenizer.decode, skip_special_tokens=False)
        self._template = template = ChatTemplate(tokenizer)

        def pair(source: str, target: str) -> tuple[array, ...]:
            user = Message(role="user", content=source)
            return template([user, Message(role="assistant", content=target)])

        first, second = pair("a", "c"), pair("b", "d")
        self._headers = [
            _common(a, b) for a, b in zip(first[3:], second[3:], strict=True)
        ]
        self._of_chats: dict[int, list[tuple[Any, list[int]]]] = {}
        digest = hashlib.sha256()
        for segment in pair(_PROBE, _PROBE[::-1]):
            digest.update(len(segment).to_bytes(8, "little"))
            digest.update(segment.tobytes())
        self.fingerprint = digest.hexdigest()

    def __call__(self, segments: Sequence[Sequence[int]]) -> tuple[str, str]:
        """Decode source and target from the segments of a :class:`~erjepa.datasets.Pair`.

        Each turn of a source of several turns is a line, ``ROLE: TEXT``.
        """
        headers = zip(segments[3:], self._headers, strict=True)
        views = [view[header:] for view, header in headers]
        source, target = (self._decode(list(view)).strip() for view in views)
        if self._template.end_of_turn in views[0]:
            with contextlib.suppress(Exception):  # a template may raise any type
                *turns, _ = self._chat(segments)
                turns = turns[turns[0][0] == "system" :]
                source = "\n".join(f"{role}: {text.strip()}" for role, text in turns)
        return source, target

    def messages(self, segments: Sequence[Sequence[int]]) -> list[dict[str, str]]:
        """Return the chat of a pair: at most one system message, then turns of user and assistant.

        Raises:
            ValueError: if no such chat is tokenized to these segments.
        """
        chat = self._chat(segments)
        messages = [Message(role=role, content=content) for role, content in chat]
        if [*map(list, self._template(messages))] != [*map(list, segments)]:
            raise ValueError(_NO_CHAT)
        return [{"role": role, "content": content} for role, content in chat]

    def _chat(self, segments: Sequence[Sequence[int]]) -> list[tuple[Any, str]]:
        """Return role and content of each message of a pair.

        Raises:
            ValueError: if a message does not start as in a chat of these roles.
        """
        turns = [*self._turns(segments[0]), segments[2][:-1]]
        headers = self._headers_of(len(turns))
        chat = []
        for turn, (role, header) in zip(turns, headers, strict=True):
            if list(turn[: len(header)]) != header:
                raise ValueError(_NO_CHAT)
            chat.append((role, self._decode(list(turn[len(header) :]))))
        return chat

    def _headers_of(self, count: int) -> list[tuple[Any, list[int]]]:
        """Return the role of each message of a chat, and the tokens before its content; those of
        the last are none.
        """
        if count not in self._of_chats:
            roles = ["system"] * (count % 2) + ["user", "assistant"] * (count // 2)
            chats = ([Message(role=r, content=text) for r in roles] for text in "ab")
            first, second = (self._turns(self._template(chat)[0]) for chat in chats)
            turns = zip(first, second, strict=True)
            headers = [list(a[: _common(a, b)]) for a, b in turns]
            self._of_chats[count] = list(zip(roles, [*headers, []], strict=True))
        return self._of_chats[count]

    def _turns(self, tokens: Sequence[int]) -> list[Sequence[int]]:
        """Split a chat into messages at its end-of-turn tokens, which are left out."""
        end = self._template.end_of_turn
        ends = [i for i, token in enumerate(tokens) if token == end] + [len(tokens)]
        starts = [0, *(i + 1 for i in ends[:-1])]
        return [tokens[a:b] for a, b in zip(starts, ends, strict=True)]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(i for i in range(len(a)) if a[i] != b[i])
