"""How one pair is laid out: one forward pass in place of three.

A pair is laid out once, as documents that attend causally within themselves. A document
may branch: a branch sees the trunk and itself, not its sister branches.

``views="shared"`` (the source is computed once, for all that follow it)::

                                               sees:  S   Q   A   P   T    positions
    S  source up to its last content token            x                    0 ..
    Q  rest of the source, header of the target       x   x                continue S
    A  target and its end of turn                     x   x   x            continue Q
    P  k predictor tokens                             x           x        continue S
    T  target alone, up to its last content token                     x    0 ..

    document 0: trunk S, branch Q A, branch P         document 1: trunk T

``views="standalone"`` (source and target are chats of their own, as in LLM-JEPA)::

    document 0: trunk S Q A      document 1: trunk U P (source view)      document 2: trunk T

``views="none"``: document 0 alone, for training on the next-token loss only.

Readouts: :math:`z^u` at the last token of S (of U), :math:`p` at the last P (at :math:`z^u`
when k = 0), :math:`z^a` at the last token of T.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from erjepa.datasets.pairs import Pair

Views = Literal["shared", "standalone", "none"]


class Segment(NamedTuple):
    """A run of tokens of one branch of one document."""

    tokens: Sequence[int]
    document: int
    branch: int = 0
    position: int = 0
    readout: Literal["", "source", "predictor", "target"] = ""


def lay_out(pair: Pair, views: Views, predictor_ids: Sequence[int]) -> list[Segment]:
    """The segments of one pair, in row order. The first two or one hold ``S Q A``.

    Args:
        pair (Pair): the tokenized pair.
        views (Views): layout, see the module's docstring.
        predictor_ids (Sequence[int]): the k predictor tokens.

    Returns:
        list[Segment]: segments; a document's trunk comes before its branches.

    Raises:
        ValueError: if there is no such layout.
    """
    answer = [*pair.bridge, *pair.target]
    if views == "none":
        return [Segment([*pair.source, *answer], 0)]
    if views == "shared":
        end = len(pair.source)
        return [
            Segment(pair.source, 0, readout="source"),
            Segment(answer, 0, branch=1, position=end),
            Segment(predictor_ids, 0, branch=2, position=end, readout="predictor"),
            Segment(pair.target_view, 1, readout="target"),
        ]
    if views == "standalone":
        end = len(pair.source_view)
        return [
            Segment([*pair.source, *answer], 0),
            Segment(pair.source_view, 1, readout="source"),
            Segment(predictor_ids, 1, position=end, readout="predictor"),
            Segment(pair.target_view, 2, readout="target"),
        ]
    raise ValueError(f"views={views}: expected one of {', '.join(get_args(Views))}")


def attention_area(layout: Iterable[Segment]) -> int:
    """Number of (query, key) pairs that the mask admits within one pair."""
    area, trunk, branches = 0, {}, {}
    for segment in layout:
        length = len(segment.tokens)
        key = (segment.document, segment.branch)
        before = branches.get(key, 0)
        if segment.branch:
            before += trunk.get(segment.document, 0)
        else:
            trunk[segment.document] = before + length
        branches[key] = branches.get(key, 0) + length
        area += length * before + length * (length + 1) // 2
    return area
