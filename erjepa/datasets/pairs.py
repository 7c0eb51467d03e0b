"""A training pair as the tokens of its views."""

import contextlib
from array import array
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """One (source, target) example, tokenized once and cut where the views begin and end.

    The full chat is ``source ++ bridge ++ target``. Every segment is an ``array('i')``
    of token ids, so a pair is compact and can be kept in an episodic memory as it is.

    Args:
        example_id: identity of the example in its dataset.
        source: chat up to the last token of the source's content. The hidden state at its last
            token is :math:`z^u`.
        bridge: what the chat template puts between source and target content (end of turn, header
            of the target).
        target: content of the target and its end-of-turn token: the tokens that the next-token loss
            predicts.
        source_view: the source as a chat of its own, up to its last content token, as in LLM-JEPA.
            Differs from ``source`` when there is a system prompt.
        target_view: the target as a chat of its own, up to its last content token. The hidden state
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
        """The token segments without the id: what an episodic memory stores."""
        return self[1:]

    def earlier_turns(self) -> list[int]:
        """Places in ``source`` of the assistant's earlier turns, each up to its end of turn.

        Such a turn follows a copy of ``bridge``, whose special tokens no content has.
        """
        found: list[int] = []
        at, end_of_turn = 0, self.target[-1]
        with contextlib.suppress(ValueError):  # index: there is none
            while True:
                at = self.source.index(self.bridge[0], at)
                first = at + len(self.bridge)
                at += 1
                if self.source[at - 1 : first] == self.bridge:
                    at = self.source.index(end_of_turn, first)
                    found += range(first, at + 1)
        return found


def require_turns(dataset: Any) -> None:
    """Find out whether the earlier turns of the assistant are known by their tokens.

    Raises:
        ValueError: naming a chat in which they are not.
    """
    for i, pair in enumerate(dataset.pairs):
        turns = sum(m.role == "assistant" for m in dataset.messages(i)[:-1])
        found = sum(pair.source[at] == pair.target[-1] for at in pair.earlier_turns())
        if found != turns:
            raise ValueError(
                f"{dataset.where(i)}: train_on_turns=all needs the tokens of {turns} earlier "
                f"turns of the assistant, and finds {found}: the chat template does not begin "
                "and end them as it does the last one; set train_on_turns=last"
            )


def require_pairs(key: str, dataset: Any) -> None:
    """Find out what a builder gave before anything depends on it.

    Raises:
        ValueError: if that is no dataset of pairs, or an empty one.
    """
    count = len(dataset) if hasattr(dataset, "__len__") else 0
    if count and isinstance(dataset[0], Pair) and hasattr(dataset, "pairs"):
        return
    what = type(dataset[0]).__name__ if count else "nothing"
    raise ValueError(
        f"{key}: its builder returned a {type(dataset).__name__} of {what}, not of pairs. "
        "Pairs come from erjepa.datasets.paired_dataset, or from a builder that returns an "
        "erjepa.datasets.PairedDataset"
    )
