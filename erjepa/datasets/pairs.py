"""A training pair as the tokens of its views."""

from array import array
from typing import NamedTuple


class Pair(NamedTuple):
    """One (source, target) example, tokenized once and cut where the views begin and end.

    The full chat is ``source ++ bridge ++ target``. Every segment is an ``array('i')``
    of token ids, so a pair is compact and can be kept in an episodic memory as it is.

    Args:
        example_id (int): identity of the example in its dataset.
        source (array): chat up to the last token of the source's content. The hidden
            state at its last token is :math:`z^u`.
        bridge (array): what the chat template puts between source and target content
            (end of turn, header of the target).
        target (array): content of the target and its end-of-turn token: the tokens
            that the next-token loss predicts.
        source_view (array): the source as a chat of its own, up to its last content
            token, as in LLM-JEPA. Differs from ``source`` when there is a system prompt.
        target_view (array): the target as a chat of its own, up to its last content
            token. The hidden state at its last token is :math:`z^a`.
    """

    example_id: int
    source: array
    bridge: array
    target: array
    source_view: array
    target_view: array

    @property
    def segments(self) -> tuple[array, ...]:
        """The token segments without the id: what an episodic memory stores."""
        return self[1:]
