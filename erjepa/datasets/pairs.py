"""Tokenized (source, target) pairs."""

import contextlib
from array import array
from typing import NamedTuple


class Pair(NamedTuple):
    """A (source, target) example, tokenized and split where its views begin and end.

    The full chat is ``source ++ bridge ++ target``. Every segment is an ``array('i')``
    of token ids, so a pair is compact and an episodic memory can store it unchanged.

    Args:
        example_id: id of the example in its dataset.
        source: chat up to the last token of the source's content. The hidden state at its last
            token is :math:`z^u`.
        bridge: tokens of the chat template between the contents of source and target (end of
            turn, header of the target).
        target: content of the target and its end-of-turn token: the labels of the next-token loss.
        source_view: the source as a separate chat, up to its last content token, as in LLM-JEPA.
            Differs from ``source`` if there is a system prompt.
        target_view: the target as a separate chat, up to its last content token. The hidden state
            at its last token is :math:`z^a`.
    """

    example_id: int
    source: array
    bridge: array
    target: array
    source_view: array
    target_view: array

    @property
    def segments(self) -> tuple[array, ...]:
        """The token segments without the id, as an episodic memory stores them."""
        return self[1:]

    def earlier_turns(self) -> list[int]:
        """Return the indices in ``source`` of the assistant's earlier turns, end of turn included.

        Each such turn follows a copy of ``bridge``, whose special tokens occur in no content.
        """
        if not self.bridge:
            return []
        found: list[int] = []
        at, end_of_turn = 0, self.target[-1]
        with contextlib.suppress(ValueError):  # from index: no further turn
            while True:
                at = self.source.index(self.bridge[0], at)
                first = at + len(self.bridge)
                at += 1
                if self.source[at - 1 : first] == self.bridge:
                    at = self.source.index(end_of_turn, first)
                    found += range(first, at + 1)
        return found
