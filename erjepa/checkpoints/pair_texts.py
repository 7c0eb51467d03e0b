"""The texts of tokenized pairs, and the fingerprint of what tokenized them."""

import hashlib
from array import array
from collections.abc import Sequence

from torchtune.data import Message
from torchtune.modules.transforms import Transform

from erjepa.datasets.chat_template import ChatTemplate

# Words, numbers, code and scripts: another vocabulary, or other merges, cut it differently.
_PROBE = """\
The quick brown fox jumps over the lazy dog; 0123456789, 3.14159 and 1,000,000 of them.
Internationalization, antidisestablishmentarianism, unbelievably, rewriting, tokenizers' choices.
SELECT name, count(*) FROM users WHERE id >= 42 GROUP BY name;\tdef f(x):\n    return x ** 2
(([A-Z]).*)&(dog.*){3,} lines that don't start with a vowel... ¿Cómo? Größe, naïve, Ελλάδα, Привет,
日本語のテキスト, 한국어, العربية, हिन्दी, \U0001f600 and ∑∫√.
"""


class PairTexts:
    """Source and target of a pair of tokens, as text.

    Args:
        tokenizer (Transform): torchtune model tokenizer.

    Attributes:
        fingerprint (str): the same for tokenizers that cut text, and frame chats, alike.
    """

    def __init__(self, tokenizer: Transform) -> None:
        self._decode = tokenizer.decode
        template = ChatTemplate(tokenizer)

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
        """Text of source and target.

        Args:
            segments (Sequence[Sequence[int]]): source, bridge, target and the two views, as in
                :class:`~erjepa.datasets.Pair`.
        """
        source, target = (
            self._decode(list(view[header:])).strip()
            for view, header in zip(segments[3:], self._headers, strict=True)
        )
        return source, target


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next(i for i in range(len(a)) if a[i] != b[i])
